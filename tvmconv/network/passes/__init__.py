"""Passes from one Relax module to another, ahead of its compilation; `building.build` has their order."""
