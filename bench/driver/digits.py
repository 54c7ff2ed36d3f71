"""The digits example: the same training on one, two and four processes over every transport."""
import re

from . import children
from .report import Bar, Row


def digits(context):
    """Final losses relative to one process, and accuracies."""
    program = context.program("digits")

    def train(command):
        output = children.run(command, context.folder, 300)
        loss = re.search(r"^final loss: (\S+)", output, re.MULTILINE)
        accuracy = re.search(r"^test accuracy: (\S+)", output, re.MULTILINE)
        if not loss or not accuracy:
            raise children.Failed(f"no final loss and accuracy in:\n{output[-2000:]}")
        return float(loss[1]), float(accuracy[1])

    words = [program, "--epochs", "2" if context.quick else "20"]
    alone, accuracy = train(words)
    agree = Bar("<=", 1e-6, "difference", "relative difference <= 1e-6")
    bar = None if context.quick else Bar(">=", 0.87, text="accuracy >= 0.87")
    rows = [Row("accuracy, 1 process", "", [accuracy], [1.0], bar)]
    for backend in ("gloo_cpu", "mpi"):
        for processes in (2, 4):
            loss, accuracy = train(context.launch(processes, backend, *words))
            away = abs(loss - alone) / abs(alone)
            rows.append(Row(f"loss, {processes} processes {backend} / 1 process", "relative",
                            [1 + away], [1.0], agree, extra={"final_loss": loss}))
            rows.append(Row(f"accuracy, {processes} processes {backend}", "", [accuracy], [1.0],
                            bar))
    return rows
