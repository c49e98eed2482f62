"""Results with something in every part of the page: two laws on three pairs of backends, 1 to 16 ranks."""
import googletest
import results


def full_results():
    tests = results.Origin("./dev test", "0123456789abcdef", "2026-11-25T16:21:06Z")
    step_bench = "build/release/bin/step_bench --out reports/results/step_bench.json"
    return results.Results(
        facts=[("command of the page", "./dev report"), ("processors", "2")],
        tests=tests,
        comparisons=[comparison(law, right) for law in ("sharding", "training")
                     for right in ("Gloo processes over TCP", "Gloo threads", "simulated, one at a time")],
        generators=[results.Generator("read_epochs", 2000, {
            "pads": {"false": 900, "true": 1100},
            "source of the samples that the loader reads": {"map": 1500, "stream": 380, "weighted_sampler": 120}})],
        mutants=[
            results.Mutant("shards", "tail-rank-off-by-one", "The tail of a shard goes to the next rank.", "assertion",
                           "data_test: ShardPlanTest.ShortTailIsFilledFromTheStart", "", "0123456", "2026-11-25"),
            results.Mutant("shards", "capacity", "A vector reserves less memory.", "survived", "",
                           "The content is the same.", "0123456", "2026-11-25"),
            results.Mutant("scaler", "never-run", "The scale is not reduced.", "", "", "", "", "")],
        benchmarks=[benchmark(0.00042, 1.01, results.Origin(step_bench, "0123456", "2026-11-25T10:00:00Z")),
                    benchmark(0.00047, None, results.Origin(step_bench, "fedcba9", "2026-11-20T10:00:00Z"))],
        unread_benchmark_files=3,
        faults=[googletest.FaultRuns("bit_flip", "FaultFilesTest.EndsAsDocumented", passed=3),
                googletest.FaultRuns("jitter", "OutlivedFaultFilesTest.ChangesNumbersOnlyIfItIsAboutNumbers", passed=2)],
        differences=[googletest.Difference(
            "Metrics and gathering", "gather_for_metrics with a sampler of another length than the dataset",
            "It counts from len(dataset), so a sampler of another length loses or repeats results",
            "Metrics contain each sample once", "A#2268", tests=3, passed=2)])  # fmt: skip


def comparison(law, right):
    cells = [results.Cell(ranks, "padding", value, cases) for ranks in range(1, 17)
             for value, cases in (("false", 4), ("true", 6)) if ranks > 1 or value == "false"]  # fmt: skip
    origin = results.Origin("./dev test equivalence_laws", "0123456789", "2026-11-25T16:21:06Z")
    return results.Comparison(law, "simulated, parallel", right, 160, 0, 20261121, origin, cells)


def benchmark(median, ratio, origin):
    name, beside = (f"step/mlp/batch:32/{side}" for side in ("accelerator", "libtorch"))
    return results.Benchmark(name, median, "s", ratio, beside if ratio else "", "AMD EPYC 9B14, 2 cores", origin)
