"""Schedules: how a computation is laid out on a machine.

`schedules/<target>/<algorithm>.py` is a template. Each has the same six names:

- `VERSION`, raised when old configurations would mean something else;
- `Config`, the knobs, a frozen dataclass; one added later has a default that means what was before, so that older
  records stay true;
- `space(workload, target)`, the configurations worth trying;
- `default_config(workload, target)`, a legal one for every workload;
- `features(workload, config)`, what the tuner's cost model should know of a configuration beside its knobs;
- `schedule(workload, config, target)`, the scheduled computation.

Some have more of these:

- `supports(workload)`, for a template that does not take all convolutions of its kind, or takes channels in blocks;
- `estimate(workload, target)`, cycles of a core, by which one of several templates is taken where nothing is measured;
- `pays(workload, config, target, density, weight_bytes)`, of a sparse template: whether the dense one is slower;
- `ablations(config)`, the configuration without each of its optimizations in turn.
"""
