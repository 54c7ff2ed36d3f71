"""Processes that the driver of the benchmarks drives in turns: turns_test.py BENCH_FOLDER"""
import sys
import threading
import unittest

sys.path.insert(0, sys.argv.pop(1))
sys.dont_write_bytecode = True

from driver import children  # noqa: E402
from driver.turns import together  # noqa: E402


class Together(unittest.TestCase):
    def test_Together_RunsTurnsAtOnceAndReturnsTheSlowest(self):
        at_once = threading.Barrier(2, timeout=30)  # breaks unless both turns run

        class Fake:
            def __init__(self, seconds):
                self.seconds = seconds

            def turn(self, mode, steps):
                at_once.wait()
                return self.seconds * steps, 0.0, mode

        self.assertEqual(together((Fake(0.5), Fake(0.75)), "train", 2), 1.5)

    def test_Together_WithTurnThatFails_Throws(self):
        class Broken:
            def turn(self, mode, steps):
                raise children.Failed(f"{mode} exited during a turn")

        class Good:
            def turn(self, mode, steps):
                return 1.0, 0.0, 0.0

        with self.assertRaisesRegex(children.Failed, "train exited"):
            together((Good(), Broken()), "train", 1)


unittest.main()
