"""Schedules: how a computation is laid out on a machine.

`schedules/<target>/<algorithm>.py` is a template: it has the names of `template.Template`. `tvmconv.dispatch.register`
makes another object with these names one: dispatch, the tuner, the benchmarks and the command line then offer it.
"""
