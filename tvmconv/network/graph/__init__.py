"""Reading and rewriting of a Relax module: its bindings, constants, convolutions and open sizes."""
