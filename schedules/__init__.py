"""Schedules: how a computation is laid out on a machine.

A template is the object `template` of a module in `schedules/<target>/`; it has the attributes of `template.Template`.
`tvmconv.dispatch.register` takes another object with these attributes as one: dispatch, the tuner, the benchmarks and
the command line then offer it.
"""
