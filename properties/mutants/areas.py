"""Which tests run for the mutants of an area, and for the generated mutants of a file. A test is the name of a ctest entry, the
command of a program, or the sources of a program (see source_programs.py)."""

EQUIVALENCE = "accel test --equivalence --cpu --num_processes 16 --cases 60"
# recorded_plans_test without the same comparison for Gloo's processes, which takes 30 times as long.
RECORDED_PLANS = "recorded_tests --gtest_fail_fast --gtest_filter=RecordedPlansTest.SimRun*"
# Likewise without Gloo and without the planted bugs.
CHECKPOINT_LAWS = "laws --gtest_fail_fast --gtest_filter=CheckpointLaws.ATraining*:CheckpointLaws.Cuts*"

AREAS = {
    "shards": ["data_test", "sharding_laws", RECORDED_PLANS, "recorded_sweeps_test", "data_laws", "loader_laws"],
    "streams": ["data_test", "loader_place_laws", RECORDED_PLANS, "stream_laws", "data_laws", "loader_laws", "resume_laws"],
    "dispatch": ["data_test", "dispatched_loader_laws", RECORDED_PLANS, "loader_place_laws", "data_laws", "loader_laws", "elastic_laws"],
    "metrics": ["accelerator_test", "recorded_faults_test", RECORDED_PLANS, "stream_laws", "data_laws", "loader_laws"],
    "rng": ["state_test", "data_test", "shared_order_laws", "recorded_random_numbers_test", "rng_laws", RECORDED_PLANS, "order_laws", "data_laws"],
    "plugins": ["config_test", "accelerator_test"],
    "accumulation": ["accelerator_test", "accumulation_laws", CHECKPOINT_LAWS],
    "scaler": ["precision_test", "accelerator_test", "save_state_test", CHECKPOINT_LAWS],
    "schedules": ["optim_test", "recorded_schedules_test", "accelerator_test"],
    "optimizers": ["recorded_optimizers_test", "optim_test"],
    "ddp": ["accelerator_test", "parallel_test", "save_state_test"],
    "hooks": ["parallel_test"],
    "sharded": ["sharded_test", "accelerator_test", "save_state_test"],
    "context": ["context_parallel_test"],
    "checkpoints": ["core_test", "save_state_test", "checkpoint_test", "elastic_laws", CHECKPOINT_LAWS],
    "offload": ["offload_test"],
    "models": ["tasks_test", "tensor_parallel_test"],
    "experts": ["experts_test"],
    "pipeline": ["pipeline_test", "pipeline_training_test"],
    "predict": ["predict_test"],
    "prove": ["prove_test"],
    "device": ["device_training_test --gtest_fail_fast --gtest_filter=-*Laws.*", "device_training_test --gtest_filter=*Laws.*"],
    "engine": ["sim_engine_test", "diagnosis_laws", "schedule_laws"],
    "collectives": ["network_test", "collectives_regressions", "shared_memory_test", "collectives_laws", "transport_laws"],
    "diagnosis": ["sim_engine_test", "sim_backend_test", "finding_laws", "diagnosis_laws", "false_alarm_laws"],
    "faults": ["sim_faults_test", "fault_effects_test"],
    "elastic": ["membership_test", "elastic_test"],
    "recorder": ["recorded_backend_test", "recorded_call_laws", "host_laws", "hangs_test"],
    "layouts": ["layout_forecast_test", "sim_backend_test"],
    "processes": ["process_test", "divided_weights_test", "process_ranks_test"],
    "sources": ["sources_test", "parquet_test", "recorded_tokenizers_test"],
    "launch": ["launch_plan_test", "launchers_test", "local_launch_test", "launch_test", "several_launchers_test"],
    "tracking": ["report_test", "tracking_test"],
    "equivalence": [EQUIVALENCE],
}

# Plans are pure functions of sizes, ranks and flags, so generated mutants of them are quick to run.
PLANS = {
    "reference/data/samplers/shard_plan.cpp": ["data_test", "sharding_laws", RECORDED_PLANS, "data_laws"],
    "reference/experts/token_dispatch_plan.cpp": ["experts_test"],
    "reference/sharded/unit_plan.cpp": ["sharded_test"],
    "reference/sharded/memory_plan.cpp": ["sharded_test"],
    "reference/context_parallel/sequence_plan.cpp": ["context_parallel_test"],
    "reference/checkpoint/weights_plan.cpp": ["checkpoint_test"],
    "reference/offload/device_map_plan.cpp": ["offload_test"],
    "reference/offload/balanced_memory.cpp": ["offload_test"],
    "backends/launch/cpu_plan.cpp": ["launch_plan_test"],
    "sim/collectives/collective_plan.cpp": ["network_test"],
    "sim/collectives/ring_plan.cpp": ["network_test", "collectives_laws"],
    "sim/collectives/stages.cpp": ["network_test"],
    "sim/faults/fault_plan.cpp": ["sim_faults_test"],
    "sim/network/plan_timing.cpp": ["network_test"],
    "sim/programs/accel/launch_plan.cpp": ["launch_plan_test"],
}

# data_test without the position's tests, which take longer than all others.
DATA_TEST = "data_test --gtest_fail_fast --gtest_filter=-LoaderPosition*"
POSITION_TEST = "data_test --gtest_fail_fast --gtest_filter=LoaderPosition*"
# Cases of the equivalence suite, which are shrunk, and some of its generated ones.
EQUIVALENCE_LAWS = "laws --gtest_fail_fast --gtest_filter=*EquivalenceRegressions*:*EquivalenceLaws.Gloo*"
LOADER_LAWS = [DATA_TEST, RECORDED_PLANS, "dispatched_loader_laws", "shared_order_laws", "loader_state_laws", "stream_laws", "loader_place_laws",
               "data_laws", "elastic_laws", "order_laws", "resume_laws", "loader_laws", EQUIVALENCE_LAWS]  # fmt: skip
# The programs of a header, each of one or two sources, which take about 10 s to build on two cores. They run in the order of the
# table.
ONE_RANK = "tests/reference/data/data_loader_test.cpp tests/reference/data/iterable_test.cpp"
WORKERS = "tests/reference/data/workers_test.cpp"
EPOCHS = "properties/data_laws.cpp properties/order_laws.cpp"
PLACES = "properties/resume_laws.cpp properties/loader_place_laws.cpp"
STREAMS = "properties/stream_laws.cpp properties/shared_order_laws.cpp"
DISPATCHED = "properties/dispatched_loader_laws.cpp"
STATES = "properties/loader_state_laws.cpp properties/elastic_laws.cpp"
POSITION = "tests/reference/data/loader_position_test.cpp"

# Loaders, the dispatcher and resume.
LOADERS = {
    "reference/data/loader_position.cpp": [POSITION_TEST, "loader_place_laws", "loader_state_laws", "resume_laws", "state_machine_laws"],
    "reference/data/loader_position.hpp": [POSITION, PLACES, STATES],
    "reference/data/loader.cpp": [*LOADER_LAWS, "recorded_faults_test", "accelerator_test", "state_machine_laws",
                                  "device_training_test --gtest_fail_fast --gtest_filter=-*Laws.*"],
    "reference/data/loader_state_dict.cpp": [*LOADER_LAWS, "accelerator_test", "state_machine_laws"],
    "reference/data/pass.cpp": [*LOADER_LAWS, "accelerator_test", "state_machine_laws"],
    "reference/data/loader_state.cpp": [*LOADER_LAWS, "save_state_test", "state_machine_laws"],
    "reference/data/reading_plan.cpp": [*LOADER_LAWS, "recorded_random_numbers_test", "accelerator_test"],
    "reference/data/batch_stream.cpp": LOADER_LAWS,
    "reference/data/dispatched_batches.cpp": LOADER_LAWS,
    "reference/data/even_steps.cpp": LOADER_LAWS,
    "reference/data/samplers/batch_sampler_shard.cpp": [*LOADER_LAWS, "sharding_laws"],
    "reference/data/samplers/sampler_shard.cpp": [*LOADER_LAWS, "sharding_laws"],
    "reference/data/samplers/sampler.cpp": [*LOADER_LAWS, "recorded_random_numbers_test"],
    "reference/data/batch_stream.hpp": [WORKERS, ONE_RANK, EPOCHS, PLACES, STREAMS, DISPATCHED, STATES],
    "reference/data/loader_iterator.hpp": [ONE_RANK, EPOCHS, PLACES, DISPATCHED, STREAMS, STATES, WORKERS],
    "reference/data/data_loader.hpp": [ONE_RANK, EPOCHS, PLACES, DISPATCHED, STREAMS, STATES, WORKERS],
    "reference/data/dispatched_batches.hpp": [DISPATCHED, EPOCHS, PLACES, STREAMS, STATES],
    "reference/data/even_steps.hpp": [STREAMS, EPOCHS, PLACES, STATES],
    "reference/data/sharded_stream.hpp": [STREAMS, EPOCHS, PLACES, WORKERS, STATES],
    "reference/data/iterable_shard.hpp": [ONE_RANK, STREAMS, EPOCHS, PLACES, STATES],
}  # fmt: skip

# The groups of `./dev mutants --generate GROUP`.
GROUPS = {"plans": PLANS, "loaders": LOADERS}


def group_of(file):
    """The group of generated mutants that contains a file; None if it was removed."""
    return next((name for name, tests_of in GROUPS.items() if file in tests_of), None)
