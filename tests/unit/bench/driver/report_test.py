"""Rows of results, their verdicts and their limits: report_test.py BENCH_FOLDER"""
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
sys.dont_write_bytecode = True

from driver.report import Bar, Row, geometric_mean_row, table  # noqa: E402


class Limits(unittest.TestCase):
    def test_Row_WithoutLimit_WritesNone(self):
        row = Row("steps", "1/s", [3.0], [2.0], Bar(">=", 1.4))
        self.assertEqual(row.verdict(), "pass")
        self.assertFalse([key for key in row.as_json() if "limit" in key])

    def test_Row_OfSpeeds_ComparesMedianOfTheLimitWithTheBar(self):
        row = Row("steps", "1/s", [26.0, 27.0, 25.0], [20.0, 20.0, 20.0], Bar(">=", 1.4),
                  limit=[27.0, 29.0, 26.0], limit_name="nothing sent")
        self.assertEqual(row.verdict(), "miss")
        written = row.as_json()
        self.assertEqual(written["ratio"], 1.3)
        self.assertEqual((written["limit"], written["limit_of"]), (27.0, "nothing sent"))
        self.assertEqual(written["value_at_limit"], 1.35)

    def test_Row_OfTimes_TurnsTheLimitAsItTurnsOurs(self):
        row = Row("load", "s", [2.0], [3.0], Bar(">=", 3), less_is_better=True, limit=[1.5])
        self.assertEqual(row.as_json()["value_at_limit"], 2.0)

    def test_Row_OfSizes_DividesTheLimitByThePeer(self):
        row = Row("memory", "MiB", [9.0], [8.0], Bar("<=", 1), less_is_better=True, faster=False,
                  limit=[8.4])
        self.assertEqual(row.as_json()["value_at_limit"], 1.05)

    def test_Row_WithBarForDifference_SubtractsThePeer(self):
        row = Row("cost", "us", [6.5, 6.6], [5.0, 5.1], Bar("<=", 1, "difference"),
                  limit=[6.25, 6.35])
        self.assertEqual(row.as_json()["value_at_limit"], 1.25)
        self.assertEqual(row.as_json()["difference"], 1.5)

    def test_Row_WithBarForOurs_ComparesTheLimitItself(self):
        row = Row("env", "ms", [11.0], [11.0], Bar("<=", 10, "ours"), limit=[9.0])
        self.assertEqual(row.as_json()["value_at_limit"], 9.0)
        self.assertEqual(row.verdict(), "miss")

    def test_Row_WithoutBar_ShowsTheRatioAtTheLimit(self):
        row = Row("steps", "1/s", [1.0], [2.0], limit=[1.5])
        self.assertEqual(row.as_json()["value_at_limit"], 0.75)

    def test_Row_WithLimitOfOtherRounds_Throws(self):
        with self.assertRaisesRegex(ValueError, "steps: 1 limits of 2 rounds"):
            Row("steps", "1/s", [1.0, 2.0], [1.0, 2.0], limit=[1.0])

    def test_Table_ShowsLimits(self):
        head, with_one, without = table([
            Row("steps", "1/s", [26.0], [20.0], Bar(">=", 1.4), limit=[27.0],
                limit_name="nothing sent"),
            Row("load", "s", [1.0], [3.0], Bar(">=", 3), less_is_better=True)]).splitlines()
        self.assertEqual(head.split(),
                         "ours peer limit unit ratio min max bar value at limit".split())
        self.assertRegex(with_one,
                         r"^steps +26 +20 +27 +1/s +1.3 .* 1.35 +miss +limit: nothing sent$")
        self.assertRegex(without, r"^load +1 +3 +s +3 .* pass$")

    def test_GeometricMean_HasALimitOnlyIfEachRowHasOne(self):
        rows = [Row("8 B", "us", [1.0], [2.0], less_is_better=True, limit=[0.5]),
                Row("1 KiB", "us", [4.0], [8.0], less_is_better=True)]
        mean = geometric_mean_row("mean", rows, Bar(">=", 1.5)).as_json()
        self.assertEqual(mean["ratio"], 2.0)
        self.assertNotIn("limit", mean)
        rows[1].limit = [2.0]
        mean = geometric_mean_row("mean", rows, Bar(">=", 1.5)).as_json()
        self.assertEqual((mean["limit"], mean["value_at_limit"]), (1.0, 4.0))


unittest.main()
