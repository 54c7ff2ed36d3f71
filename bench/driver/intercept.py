"""The intercept's overhead when every parameter is resident."""
from . import children
from .report import Bar, Row


def intercept(context):
    """Forward and backward of a Linear with managed, resident parameters, against plain ones."""
    output = children.run([*context.bench("intercept"), "--rounds",
                           str(context.rounds_or(15))], context.folder, 600)
    plain, managed = {}, {}
    for line in output.splitlines():
        size, without, with_intercept = line.split()
        plain.setdefault(size, []).append(float(without))
        managed.setdefault(size, []).append(float(with_intercept))
    return [Row(f"Linear {size}x{size}, batch 64, managed / plain", "us", managed[size], plain[size],
                Bar("<=", 1.03), less_is_better=True, faster=False) for size in plain]
