// The scripts and manifests of configs/clusters on two hosts in network namespaces. This test plays Kubernetes,
// Kubeflow's operator, JobSet, SLURM, apptainer and torchrun: it sets the variables that they set. mpirun is Open
// MPI's. Every training has the bits of the simulator. Skipped where the machine does not allow namespaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <regex>

#include "reference/files/files.hpp"
#include "tests/programs/support/network.hpp"

namespace accel::testing::clusters_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

constexpr std::chrono::seconds kLimit{120};

struct Pod {
  Words command;
  Variables variables;
};

class ClustersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Network::why_not(); !reason.empty())
      GTEST_SKIP() << "no network namespaces on this machine: " << reason;
    network_.emplace(2);
    fs::create_directories(folder_.path("bin"));
    fs::create_directories(folder_.path("work"));
    fs::create_symlink(bin("launched_training"), folder_.path("work/train"));
    write_program("apptainer", "while [ \"$1\" != accel.sif ]; do shift; done; shift; exec \"$@\"\n");
  }

  void write_program(const std::string& name, const std::string& text) const {
    const auto path = folder_.write("bin/" + name, "#!/bin/bash\n" + text);
    fs::permissions(path, fs::perms::owner_all);
  }
  [[nodiscard]] std::string manifest(const std::string& name) const { return source("configs/clusters/" + name); }
  // The program of a job reads and writes its checkpoints in this folder.
  [[nodiscard]] std::string checkpoints() const {
    fs::create_directories(folder_.path("checkpoints"));
    return folder_.path("checkpoints");
  }
  [[nodiscard]] Variables around(const Variables& more = {}) const {
    Variables variables{{"HF_HOME", folder_.path("home")},
                        {"OMP_NUM_THREADS", "1"},
                        {"PATH", folder_.path("bin") + ":" + std::string(std::getenv("PATH"))}};
    for (const auto& [name, value] : more) variables[name] = value;
    return variables;
  }
  // Runs a script of configs/clusters on a host, in a folder that has the program ./train.
  [[nodiscard]] CommandResult run_script(int host, const std::string& name, const Words& arguments,
                                         const Variables& variables) const {
    Words command{"sh", "-c", "cd \"$1\" && shift && exec \"$@\"", "sh", folder_.path("work"), "bash", manifest(name)};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return network_->run_on(host, command, {.environment = around(variables), .limit = kLimit});
  }
  // One pod on each host.
  [[nodiscard]] std::vector<CommandResult> run_pods(const std::vector<Pod>& pods) const {
    std::vector<std::future<CommandResult>> running;
    for (std::size_t host = 0; host < pods.size(); ++host) {
      running.push_back(std::async(std::launch::async, [&, host] {
        return network_->run_on(static_cast<int>(host), pods[host].command,
                                {.environment = around(pods[host].variables), .limit = kLimit});
      }));
    }
    std::vector<CommandResult> results;
    for (auto& pod : running) results.push_back(pod.get());
    return results;
  }
  // What kubelet makes of a pod's template: `index` is the annotation job-completion-index.
  [[nodiscard]] Pod pod_of(const YAML::Node& spec, const std::string& index, Variables variables = {}) const {
    const auto container = spec["containers"][0];
    Pod pod{.variables = std::move(variables)};
    for (const auto& word : container["command"].as<Words>())
      pod.command.push_back(word == "/app/train"     ? bin("launched_training")
                            : word == "/checkpoints" ? checkpoints()
                            : word == "accel"        ? bin("accel")
                                                     : word);
    for (const auto& entry : container["env"]) {
      const auto name = entry["name"].as<std::string>();
      if (entry["value"]) {
        pod.variables[name] = entry["value"].as<std::string>();
        continue;
      }
      EXPECT_EQ(entry["valueFrom"]["fieldRef"]["fieldPath"].as<std::string>(),
                "metadata.annotations['batch.kubernetes.io/job-completion-index']");
      pod.variables[name] = index;
    }
    pod.variables["KUBERNETES_SERVICE_HOST"] = "10.96.0.1";
    pod.variables["KUBERNETES_SERVICE_PORT"] = "443";
    return pod;
  }
  void expect_training(const CommandResult& rank_0, int num_ranks) const {
    EXPECT_EQ(rank_0.exit_code, 0) << rank_0.error;
    EXPECT_THAT(last_line(rank_0.output), StartsWith("parameters ")) << rank_0.error;
    EXPECT_EQ(last_line(rank_0.output), last_line(simulated(num_ranks).output)) << rank_0.error;
  }
  [[nodiscard]] CommandResult simulated(int num_ranks) const {
    fs::create_directories(folder_.path("simulated"));
    return run_command({bin("accel"), "launch", "--sim", "--num_processes", std::to_string(num_ranks),
                        bin("launched_training"), folder_.path("simulated")},
                       {.environment = around(), .limit = kLimit});
  }
  void expect_all_succeed(const std::vector<CommandResult>& results, int num_ranks) const {
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.error;
    expect_training(results.at(0), num_ranks);
  }

  TemporaryFolder folder_;
  std::optional<Network> network_;
};

// --- Kubernetes -----------------------------------------------------------------------------------------------------

// Source: kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication: a pod of an indexed job is called JOB-INDEX,
// and the headless service that its subdomain names makes that known.
TEST_F(ClustersTest, PodsOfAnIndexedJob) {
  const auto documents = YAML::LoadAllFromFile(manifest("kubernetes/indexed_job.yaml"));
  ASSERT_EQ(documents.size(), 2);
  const auto &service = documents[0], &job = documents[1];
  const auto template_spec = job["spec"]["template"]["spec"];
  const auto name = job["metadata"]["name"].as<std::string>(), domain = template_spec["subdomain"].as<std::string>();
  EXPECT_EQ(service["metadata"]["name"].as<std::string>(), domain);
  EXPECT_EQ(service["spec"]["clusterIP"].as<std::string>(), "None");
  EXPECT_EQ(service["spec"]["selector"]["job-name"].as<std::string>(), name);
  EXPECT_EQ(job["spec"]["completionMode"].as<std::string>(), "Indexed");
  EXPECT_EQ(job["spec"]["parallelism"].as<int>(), job["spec"]["completions"].as<int>());
  std::vector<Pod> pods;
  std::map<std::string, int> names;
  for (int index = 0; index < job["spec"]["completions"].as<int>(); ++index) {
    pods.push_back(pod_of(template_spec, std::to_string(index), {{"JOB_COMPLETION_INDEX", std::to_string(index)}}));
    names[name + "-" + std::to_string(index) + "." + domain] = index;
  }
  network_->name_hosts(names);
  expect_all_succeed(run_pods(pods), 2);
}

// The name of a pod is known once it runs, which may be after the other pods.
TEST_F(ClustersTest, ARankWaitsForTheNameOfThePodOfRank0) {
  const auto job = YAML::LoadAllFromFile(manifest("kubernetes/indexed_job.yaml"))[1];
  network_->name_hosts({});
  std::vector<Pod> pods;
  for (const auto* index : {"0", "1"}) pods.push_back(pod_of(job["spec"]["template"]["spec"], index));
  auto running = std::async(std::launch::async, [&] { return run_pods(pods); });
  std::this_thread::sleep_for(std::chrono::seconds(3));
  network_->name_hosts({{"train-0.train", 0}, {"train-1.train", 1}});
  const auto results = running.get();
  expect_all_succeed(results, 2);
  EXPECT_THAT(results[1].error, HasSubstr("MASTER_ADDR: train-0.train is unknown; waiting for the pod of rank 0"));
}

// Source: github.com/kubeflow/training-operator, pkg/controller.v1/pytorch, envvar.go and master.go: RANK is 0 for the
// master and 1 more than the index for workers, WORLD_SIZE the number of replicas, and there is no local rank.
TEST_F(ClustersTest, PodsOfAPyTorchJob) {
  const auto job = YAML::LoadFile(manifest("kubernetes/pytorchjob.yaml"));
  const auto name = job["metadata"]["name"].as<std::string>();
  const auto replicas = job["spec"]["pytorchReplicaSpecs"];
  const auto master = replicas["Master"]["template"]["spec"];
  ASSERT_EQ(replicas["Master"]["replicas"].as<int>(), 1);
  std::string port;
  for (const auto& entry : master["containers"][0]["ports"]) {
    if (entry["name"].as<std::string>() == "pytorchjob-port") port = entry["containerPort"].as<std::string>();
  }
  const int num_workers = replicas["Worker"]["replicas"].as<int>();
  std::vector<Pod> pods;
  for (int rank = 0; rank <= num_workers; ++rank) {
    const auto spec = replicas[rank == 0 ? "Master" : "Worker"]["template"]["spec"];
    EXPECT_EQ(spec["containers"][0]["name"].as<std::string>(), "pytorch");
    pods.push_back(pod_of(spec, "",
                          {{"PYTHONUNBUFFERED", "0"},
                           {"MASTER_PORT", port},
                           {"MASTER_ADDR", name + "-master-0"},
                           {"WORLD_SIZE", std::to_string(1 + num_workers)},
                           {"RANK", std::to_string(rank)}}));
  }
  network_->name_hosts({{name + "-master-0", 0}, {name + "-worker-0", 1}});
  expect_all_succeed(run_pods(pods), 2);
}

// Source: jobset.sigs.k8s.io: a pod is called JOBSET-REPLICATEDJOB-JOBINDEX-PODINDEX, in the subdomain JOBSET.
TEST_F(ClustersTest, PodsOfAJobSetLaunchTheRanksOfTheirMachine) {
  const auto set = YAML::LoadFile(manifest("kubernetes/jobset.yaml"));
  const auto name = set["metadata"]["name"].as<std::string>();
  const auto workers = set["spec"]["replicatedJobs"][0];
  const auto job = workers["template"]["spec"];
  EXPECT_TRUE(set["spec"]["network"]["enableDNSHostnames"].as<bool>());
  EXPECT_EQ(job["completionMode"].as<std::string>(), "Indexed");
  std::vector<Pod> pods;
  std::map<std::string, int> names;
  for (int index = 0; index < job["completions"].as<int>(); ++index) {
    pods.push_back(
        pod_of(job["template"]["spec"], std::to_string(index), {{"JOB_COMPLETION_INDEX", std::to_string(index)}}));
    names[name + "-" + workers["name"].as<std::string>() + "-0-" + std::to_string(index) + "." + name] = index;
  }
  network_->name_hosts(names);
  expect_all_succeed(run_pods(pods), 4);
}

// --- SLURM ----------------------------------------------------------------------------------------------------------

class SlurmTest : public ClustersTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Scripts, SlurmTest, ::testing::Values("slurm.sbatch", "slurm_container.sbatch"),
                         [](const auto& info) { return fs::path(info.param).stem().string(); });

int option_of(const std::string& script, const std::string& name) {
  std::smatch found;
  const std::regex option("#SBATCH --" + name + "=(\\d+)");
  EXPECT_TRUE(std::regex_search(script, found, option)) << name;
  return found.empty() ? 0 : std::stoi(found[1]);
}

// Source: slurm.schedmd.com/srun.html, output environment variables.
TEST_P(SlurmTest, TasksOfAStep) {
  const auto script = accel::read_text(manifest(GetParam()));
  const int nodes = option_of(script, "nodes"), tasks = option_of(script, "ntasks-per-node");
  ASSERT_EQ(nodes, 2);
  write_program("scontrol", "[ \"$*\" = \"show hostnames $SLURM_JOB_NODELIST\" ] && printf 'node0\\nnode1\\n'\n");
  write_program("srun", R"sh(
[ "$1" = --kill-on-bad-exit=1 ] && shift
for node in 0 1; do
  for local in $(seq 0 $((TASKS - 1))); do
    ip netns exec "${HOST}$node" env SLURM_PROCID=$((node * TASKS + local)) SLURM_LOCALID=$local SLURM_NODEID=$node \
      SLURM_STEP_NUM_TASKS=$((2 * TASKS)) "SLURM_STEP_TASKS_PER_NODE=$TASKS(x2)" "$@" &
  done
done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit $status
)sh");
  network_->name_hosts({{"node0", 0}, {"node1", 1}});
  const auto host = network_->host_name(0);
  const auto run = run_script(0, GetParam(), {checkpoints()},
                              {{"SLURM_JOB_ID", "4711"},
                               {"SLURM_JOB_NODELIST", "node[0-1]"},
                               {"SLURM_NTASKS", std::to_string(nodes * tasks)},
                               {"SLURM_NTASKS_PER_NODE", std::to_string(tasks)},
                               {"SLURM_CPUS_PER_TASK", "1"},
                               {"TASKS", std::to_string(tasks)},
                               {"HOST", host.substr(0, host.size() - 1)}});
  expect_training(run, nodes * tasks);
}

// --- no controller --------------------------------------------------------------------------------------------------

// Ranks that a user starts on two machines, with the four variables that every script sets and none for the local rank.
class PlainVariablesTest : public ClustersTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Places, PlainVariablesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "cyclic" : "block"; });
TEST_P(PlainVariablesTest, MakeRanksOnTwoHosts) {
  const bool is_cyclic = GetParam();
  std::vector<std::future<CommandResult>> running;
  for (int rank = 0; rank < 4; ++rank) {
    running.push_back(std::async(std::launch::async, [&, rank] {
      return network_->run_on(is_cyclic ? rank % 2 : rank / 2, {bin("launched_training"), checkpoints()},
                              {.environment = around({{"RANK", std::to_string(rank)},
                                                      {"WORLD_SIZE", "4"},
                                                      {"MASTER_ADDR", Network::address(0)},
                                                      {"MASTER_PORT", "29500"}}),
                               .limit = kLimit});
    }));
  }
  std::vector<CommandResult> results;
  for (auto& rank : running) results.push_back(rank.get());
  expect_all_succeed(results, 4);
  const bool is_compared = results[0].error.find("calls are not compared") == std::string::npos;
  EXPECT_EQ(is_compared, !is_cyclic) << results[0].error;
}

// --- MPI and torchrun -----------------------------------------------------------------------------------------------

// Open MPI starts its daemon on the other host by an agent in place of ssh.
TEST_F(ClustersTest, MpirunOnTwoHosts) {
  network_->name_hosts({{"node0", 0}, {"node1", 1}});
  const auto host = network_->host_name(0);
  write_program("agent", "node=${1#node}; shift; exec ip netns exec \"" + host.substr(0, host.size() - 1) +
                             "$node\" sh -c \"$*\"\n");
  const auto run = run_script(0, "mpi.sh", {checkpoints()},
                              {{"OMPI_MCA_plm_rsh_agent", folder_.path("bin/agent")},
                               {"OMPI_MCA_btl_tcp_if_include", "eth0"},
                               {"OMPI_MCA_oob_tcp_if_include", "eth0"},
                               {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                               {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  expect_training(run, 4);
}

// Source: torch/distributed/elastic/agent/server/local_elastic_agent.py. The agent's store is that of rank 0 here, as
// with rendezvous backends that do not share theirs.
TEST_F(ClustersTest, TorchrunOnTwoHosts) {
  network_->name_hosts({{"node0", 0}, {"node1", 1}});
  write_program("torchrun", R"sh(
while [ "${1#--}" != "$1" ]; do
  case $1 in
    --no-python) shift; continue ;;
    --nnodes) nodes=$2 ;;
    --nproc-per-node) ranks=$2 ;;
    --rdzv-endpoint) address=${2%:*} ;;
  esac
  shift 2
done
for local in $(seq 0 $((ranks - 1))); do
  rank=$((NODE * ranks + local))
  env RANK=$rank LOCAL_RANK=$local GROUP_RANK="$NODE" ROLE_RANK=$rank ROLE_NAME=default WORLD_SIZE=$((nodes * ranks)) \
    LOCAL_WORLD_SIZE="$ranks" GROUP_WORLD_SIZE="$nodes" ROLE_WORLD_SIZE=$((nodes * ranks)) MASTER_ADDR="$address" \
    MASTER_PORT=29411 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=train \
    TORCHELASTIC_USE_AGENT_STORE=False "$@" &
done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit $status
)sh");
  std::vector<std::future<CommandResult>> machines;
  for (int node = 0; node < 2; ++node) {
    machines.push_back(std::async(std::launch::async, [&, node] {
      return run_script(node, "torchrun.sh", {"node0", checkpoints()}, {{"NODE", std::to_string(node)}});
    }));
  }
  std::vector<CommandResult> results;
  for (auto& machine : machines) results.push_back(machine.get());
  expect_all_succeed(results, 4);
}

}  // namespace
}  // namespace accel::testing::clusters_test
