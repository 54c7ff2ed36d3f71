// Other launchers: how they are called, how their end is reported, and what is rejected before.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "coupler_run.h"
#include "expect.h"
#include "fake_launchers.h"

namespace coupler::testing_launch {
namespace {

// "launch --via WHICH -o backend.use=gloo_cpu" and the rest.
std::vector<std::string> via(const std::string& which, const std::vector<std::string>& rest) {
  std::vector<std::string> words = {"launch", "--via", which, "-o", "backend.use=gloo_cpu"};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

std::string write_hostfile(const FakeLaunchers& fakes, const std::string& text) {
  const auto path = fakes.folder() + "/hosts";
  std::ofstream(path) << text;
  return path;
}

TEST(ViaSlurm, InAnAllocation_IsSrun_WithOurOptions) {
  FakeLaunchers fakes;
  fakes.add("srun");
  const auto result = run_coupler(
      via("slurm", {"-n", "4", "--machines", "2", "--bind", "core", "--prefix", "--log-dir", "/tmp",
                    "--num_cpu_threads_per_process", "2", "/bin/echo", "a b"}),
      fakes.allocation(8));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output,
              "srun [--ntasks=4] [--nodes=2] [--ntasks-per-node=2] [--kill-on-bad-exit=1] "
              "[--cpus-per-task=2] [--cpu-bind=cores] [--label] [--output=/tmp/rank-%t.log] "
              "[/bin/echo] [a b]\n");
  EXPECT_SAYS(result.output, "COUPLER_OVERRIDES=backend.use=gloo_cpu\n");
  EXPECT_SAYS(result.output, "OMP_NUM_THREADS=2\n");
}

TEST(ViaSlurm, WithoutANumber_TakesTheAllocationsTasks) {
  FakeLaunchers fakes;
  fakes.add("srun");
  const auto result = run_coupler(via("slurm", {"/bin/true"}), fakes.allocation(6));
  EXPECT_SAYS(result.output, "[--ntasks=6]");
}

TEST(ViaSlurm, MoreProcessesThanTasks_OutsideOfAnAllocation_OrWithoutSrun_IsRefused) {
  FakeLaunchers fakes;
  fakes.add("srun");
  const auto more = run_coupler(via("slurm", {"-n", "5", "/bin/true"}), fakes.allocation(4));
  EXPECT_EQ(more.code, 2);
  EXPECT_SAYS(more.error, "5 processes exceed the 4 tasks of this allocation");
  EXPECT_SAYS(more.error, "salloc --ntasks=5");
  const auto outside = run_coupler(via("slurm", {"-n", "2", "/bin/true"}), fakes.path());
  EXPECT_EQ(outside.code, 2);
  EXPECT_SAYS(outside.error, "not inside a Slurm allocation");
  EXPECT_SAYS(outside.error, "sbatch");
  const auto missing =
      run_coupler(via("slurm", {"-n", "2", "/bin/true"}), {{"SLURM_JOB_ID", "7"}, {"PATH", ""}});
  EXPECT_EQ(missing.code, 2);
  EXPECT_SAYS(missing.error, "srun was not found in PATH");
}

TEST(ViaSlurm, Print_IsAScriptForSbatch_WhichStartsSrun) {
  FakeLaunchers fakes;
  fakes.add("srun");
  CouplerRun run(via("slurm", {"--print", "-n", "6", "--machines", "3", "--name", "my job",
                               "--log-dir", "logs", "./train", "it's"}),
                 fakes.path());
  const auto script = run.wait();
  EXPECT_EQ(script.code, 0) << script.error;
  EXPECT_EQ(script.output.rfind("#!/bin/bash\n#SBATCH --job-name='my job'\n#SBATCH --nodes=3\n"
                                "#SBATCH --ntasks-per-node=2\n",
                                0),
            0U)
      << script.output;
  EXPECT_SAYS(script.output, "mkdir -p " + run.folder() + "/logs\n");
  const auto path = fakes.folder() + "/job.sh";
  std::ofstream(path) << script.output;
  const auto started = run_coupler({"launch", "-n", "1", "/bin/bash", path}, fakes.path());
  EXPECT_EQ(started.code, 0) << started.error;
  EXPECT_SAYS(started.output, "srun [--ntasks=6] [--nodes=3] [--ntasks-per-node=2]");
  EXPECT_SAYS(started.output, "[./train] [it's]\n");
  EXPECT_SAYS(started.output, "COUPLER_OVERRIDES=backend.use=gloo_cpu\n");
}

TEST(ViaSlurm, SrunsEnd_IsOurs_AndIsSaid) {
  FakeLaunchers fakes;
  fakes.add("srun", "exit 9");
  const auto code = run_coupler(via("slurm", {"-n", "2", "/bin/true"}), fakes.allocation(2));
  EXPECT_EQ(code.code, 9);
  EXPECT_SAYS(code.error, "coupler: srun exited with code 9");
  fakes.add("srun", "kill -9 $$");
  const auto killed = run_coupler(via("slurm", {"-n", "2", "/bin/true"}), fakes.allocation(2));
  EXPECT_EQ(killed.code, 128 + SIGKILL);
}

TEST(ViaSlurm, Signals_GoToSrun_AndNothingIsLeft) {
  FakeLaunchers fakes;
  fakes.add(
      "srun",
      "trap 'echo told; exit 75' TERM; sleep 60 & echo $$ > pid; while :; do sleep 0.01; done");
  CouplerRun run(via("slurm", {"-n", "2", "/bin/true"}), fakes.allocation(2));
  ASSERT_GT(run.wait_for_pid("pid"), 0);
  run.signal(SIGTERM);
  const auto result = run.wait();
  EXPECT_EQ(result.code, 75) << result.error;
  EXPECT_SAYS(result.output, "told\n");
  EXPECT_TRUE(run.is_all_gone());
}

TEST(ViaSlurm, LauncherThatIsKilled_TakesSrunWithIt) {
  FakeLaunchers fakes;
  fakes.add("srun", "sleep 60 & echo $$ > pid; wait");
  CouplerRun run(via("slurm", {"-n", "2", "/bin/true"}), fakes.allocation(2));
  ASSERT_GT(run.wait_for_pid("pid"), 0);
  run.signal(SIGKILL);
  run.wait();
  EXPECT_TRUE(run.is_all_gone());
}

TEST(ViaTorchrun, OneMachine_IsStandalone_SeveralHaveAMaster) {
  FakeLaunchers fakes;
  fakes.add("torchrun");
  const auto one = run_coupler(via("torchrun", {"-n", "2", "--log-dir", "/tmp", "/bin/echo", "x"}),
                               fakes.path());
  EXPECT_EQ(one.code, 0) << one.error;
  EXPECT_SAYS(one.output,
              "torchrun [--standalone] [--nproc-per-node=2] [--no-python] [--log-dir=/tmp] "
              "[--tee=3] [/bin/echo] [x]\n");
  EXPECT_SAYS_NOT(one.output, "OMP_NUM_THREADS=\n");  // if it is unset, torchrun sets it to 1
  const auto two = run_coupler(
      via("torchrun", {"--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "node0",
                       "--main_process_port", "29500", "-n", "6", "/bin/echo"}),
      fakes.path());
  EXPECT_SAYS(two.output,
              "torchrun [--nnodes=2] [--node-rank=1] [--master-addr=node0] [--master-port=29500] "
              "[--nproc-per-node=3] [--no-python] [/bin/echo]\n");
}

TEST(ViaTorchrun, NotInstalled_IsRefused_WithTheFix) {
  const auto result =
      run_coupler(via("torchrun", {"-n", "2", "/bin/true"}), {{"PATH", "/nowhere"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "torchrun was not found in PATH");
  EXPECT_SAYS(result.error, "omit --via");
}

TEST(ViaTorchrun, BackendMpi_IsRefused_NamingTheWay) {
  FakeLaunchers fakes;
  fakes.add("torchrun");
  const auto result =
      run_coupler({"launch", "--via", "torchrun", "-o", "backend.use=mpi", "-n", "2", "/bin/true"},
                  fakes.path());
  EXPECT_EQ(result.code, 2);
  EXPECT_SAYS(result.error, "only Open MPI's mpirun can start its processes, not torchrun");
  EXPECT_SAYS(result.error, "--via mpirun");
}

TEST(ViaMpirun, HostsOfAHostfile_GoToOpenMpi_WithOurVariables) {
  FakeLaunchers fakes;
  fakes.add("mpirun");
  auto environment = fakes.path();
  environment["COUPLER_FAKE_VERSION"] = "mpirun (Open MPI) 4.1.4";
  const auto hosts = write_hostfile(fakes, "node1 slots=2\nnode2:2\n");
  const auto result =
      run_coupler(via("mpirun", {"--hostfile", hosts, "-n", "4", "--bind", "numa", "--prefix",
                                 "--log-dir", "/tmp/logs", "--dry-run", "/bin/echo", "x"}),
                  environment);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, fakes.folder() +
                                 "/mpirun -n 4 --host node1:2,node2:2 --bind-to numa --tag-output "
                                 "--output-filename /tmp/logs:nojobid -x ");
  EXPECT_SAYS(result.output, " -x COUPLER_OVERRIDES ");
  EXPECT_SAYS(result.output, " -x MASTER_ADDR -x MASTER_PORT ");
  EXPECT_SAYS(result.output, " /bin/echo x\n");
}

TEST(ViaMpirun, ShimsOnSeveralMachines_ArePassedWhatARunPassesThem) {
  FakeLaunchers fakes;
  fakes.add("mpirun");
  auto environment = fakes.path();
  environment["COUPLER_FAKE_VERSION"] = "mpirun (Open MPI) 4.1.4";
  const auto hosts = write_hostfile(fakes, "node1 slots=2\nnode2:2\n");
  const auto result =
      run_coupler(via("mpirun", {"--hostfile", hosts, "-n", "4", "--prefix", "-o",
                                 "launch.secret_file=/job.secret", "--dry-run", "/bin/echo", "x"}),
                  environment);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "/mpirun -n 4 --bind-to none --host node1:2,node2:2 -x ");
  EXPECT_SAYS(result.output, " -x COUPLER_OVERRIDES ");
  EXPECT_SAYS(result.output, " -x COUPLER_SHIM_PREFIX -x COUPLER_SHIM_STORE ");
  EXPECT_SAYS(result.output, " rank-shim -- /bin/echo /bin/echo x\n");
}

TEST(ViaMpirun, HostsOfAHostfile_GoToHydra_InItsWords) {
  FakeLaunchers fakes;
  fakes.add("mpirun");
  auto environment = fakes.path();
  environment["COUPLER_FAKE_VERSION"] = "HYDRA build details:";
  const auto hosts = write_hostfile(fakes, "localhost slots=4\n");
  const auto result = run_coupler(
      via("mpirun", {"--mpirun_hostfile", hosts, "-n", "4", "--bind=core", "/bin/echo"}),
      environment);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output,
              "mpirun [-n] [4] [-hosts] [localhost:4] [-bind-to] [core] [/bin/echo]\n");
  const auto of_deepspeed = run_coupler(
      via("mpirun", {"--deepspeed_hostfile", hosts, "--num_gpus", "3", "/bin/echo"}), environment);
  EXPECT_SAYS(of_deepspeed.output, "mpirun [-n] [3] [-hosts] [localhost:3]");
}

TEST(ViaMpirun, WrongHostfiles_AreRefused_NamingFileAndLine) {
  FakeLaunchers fakes;
  const auto hosts = write_hostfile(fakes, "localhost slots=2\nlocalhost slts=2\n");
  const auto typo = run_coupler(via("mpirun", {"--hostfile", hosts, "-n", "2", "/bin/true"}));
  EXPECT_EQ(typo.code, 2);
  EXPECT_SAYS(typo.error, hosts + ":2: unknown word 'slts=2'; did you mean 'slots=…'?");
  write_hostfile(fakes, "localhost slots=2\n");
  const auto more = run_coupler(via("mpirun", {"--hostfile", hosts, "-n", "3", "/bin/true"}));
  EXPECT_EQ(more.code, 2);
  EXPECT_SAYS(more.error, "3 processes exceed the 2 slots of " + hosts);
  const auto interface = run_coupler(
      via("mpirun", {"--hostfile", hosts, "--interface", "nothere0", "-n", "2", "/bin/true"}));
  EXPECT_EQ(interface.code, 2);
  EXPECT_SAYS(interface.error, "no network interface 'nothere0'");
  const auto fewer = run_coupler(via("mpirun", {"-H", hosts, "--num_gpus", "3", "/bin/true"}));
  EXPECT_SAYS(fewer.error, "--num_gpus 3: localhost has only 2 slots in");
  const auto both = run_coupler(
      via("mpirun", {"-H", hosts, "--num_nodes", "1", "--nproc_per_node", "2", "/bin/true"}));
  EXPECT_SAYS(both.error, "--nproc_per_node 2 does not apply to the machines of");
  const auto missing = run_coupler(via("mpirun", {"--hostfile", "no", "-n", "3", "/bin/true"}));
  EXPECT_EQ(missing.code, 2);
  EXPECT_SAYS(missing.error, "cannot read the hostfile no: No such file");
}

TEST(ViaMpirun, NoMpirun_OrAnUnknownOne_IsRefused) {
  const auto none = run_coupler(via("mpirun", {"-n", "2", "/bin/true"}), {{"PATH", "/nowhere"}});
  EXPECT_EQ(none.code, 2);
  EXPECT_SAYS(none.error, "mpirun is not installed");
  FakeLaunchers fakes;
  fakes.add("mpirun");
  auto environment = fakes.path();
  environment["COUPLER_FAKE_VERSION"] = "LAM 7.1";
  const auto other = run_coupler(via("mpirun", {"-n", "2", "/bin/true"}), environment);
  EXPECT_EQ(other.code, 2);
  EXPECT_SAYS(other.error, "neither Open MPI's mpirun nor MPICH's (--version prints: LAM 7.1)");
}

TEST(ViaMpirun, RealOpenMpi_OnLocalSlots_RanksMeet_AndFailuresAreNamed) {
  if (!std::filesystem::exists("/usr/bin/mpirun.openmpi")) {
    GTEST_SKIP() << "mpirun.openmpi (Debian: openmpi-bin) is not installed";
  }
  FakeLaunchers fakes;
  fakes.forward("mpirun", "/usr/bin/mpirun.openmpi");
  const auto hosts = write_hostfile(fakes, "localhost slots=3\n");
  const auto met =
      run_coupler(via("mpirun", {"--hostfile", hosts, "-n", "3", kMeet}), fakes.path());
  EXPECT_EQ(met.code, 0) << met.error;
  EXPECT_SAYS(met.output, "rank 2 of 3 met 3");
  CouplerRun run(via("mpirun", {"--hostfile", hosts, "-n", "2", "--log-dir", "l", "/bin/sh", "-c",
                                "[ $COUPLER_RANK = 1 ] && { echo no >&2; exit 7; }; sleep 60"}),
                 fakes.path());
  const auto failed = run.wait();
  EXPECT_EQ(failed.code, 7);
  EXPECT_SAYS(failed.error, "coupler: rank 1 exited with code 7");
  EXPECT_TRUE(std::filesystem::exists(run.folder() + "/l/rank-1.log"));
  EXPECT_TRUE(run.is_all_gone());
}

TEST(ViaMpirun, RealMpich_RanksMeet) {
  if (!std::filesystem::exists("/usr/bin/mpirun.mpich")) {
    GTEST_SKIP() << "mpirun.mpich (Debian: mpich) is not installed";
  }
  FakeLaunchers fakes;
  fakes.forward("mpirun", "/usr/bin/mpirun.mpich");
  const auto hosts = write_hostfile(fakes, "localhost slots=3\n");
  CouplerRun run(via("mpirun", {"--hostfile", hosts, "-n", "3", kMeet}), fakes.path());
  const auto result = run.wait();
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "rank 2 of 3 met 3");
  EXPECT_TRUE(run.is_all_gone());
  const auto mpi =
      run_coupler({"launch", "--via", "mpirun", "-o", "backend.use=mpi", "-n", "2", "/bin/true"},
                  {{"PATH", fakes.folder()}});
  EXPECT_EQ(mpi.code, 2);
  EXPECT_SAYS(mpi.error, "only Open MPI's mpirun can start");
}

// Runs the script of a job with restarts in a shell whose srun fails twice.
TEST(ViaSlurm, ScriptWithRestarts_StartsAgainUntilItSucceeds) {
  FakeLaunchers fakes;
  const auto script = run_coupler(
      {"launch", "--via", "slurm", "--print", "-n", "2", "--max-restarts", "4", "./train"});
  EXPECT_EQ(script.code, 0) << script.error;
  std::ofstream(fakes.folder() + "/job.sh") << "srun() { echo start $COUPLER_RESTART_COUNT; [ "
                                               "$COUPLER_RESTART_COUNT = 2 ] || return 7; }\n"
                                            << script.output;
  const std::string out = fakes.folder() + "/out";
  EXPECT_EQ(std::system(("bash " + fakes.folder() + "/job.sh > " + out).c_str()), 0);
  std::ostringstream text;
  text << std::ifstream(out).rdbuf();
  EXPECT_EQ(text.str(), "start 0\nstart 1\nstart 2\n");
}

TEST(ViaTorchrun, RestartsAreItsOwn) {
  FakeLaunchers fakes;
  fakes.add("torchrun");
  const auto result =
      run_coupler(via("torchrun", {"-n", "2", "--max-restarts", "3", "/bin/true"}), fakes.path());
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_SAYS(result.output, "[--max-restarts=3]");
  EXPECT_SAYS_NOT(result.error, "coupler: restart");
}

TEST(ViaKubernetes, Manifests_HaveThePodsCommand_AndNothingIsStarted) {
  const auto job_set = run_coupler(via("k8s", {"--image", "reg/x:1", "-n", "4", "--machines", "2",
                                               "--name", "t1", "./train", "$(X)", "a\"b"}));
  EXPECT_EQ(job_set.code, 0) << job_set.error;
  for (const char* part :
       {"kind: JobSet\n", "  name: t1\n", "completions: 2\n", "image: \"reg/x:1\"\n",
        "- \"--per-machine\"\n              - \"2\"\n", "\"$(JOB_COMPLETION_INDEX)\"",
        "\"t1-workers-0-0.t1\"", "\"backend.use=gloo_cpu\"", "- \"./train\"\n", "\"$$(X)\"",
        "\"a\\\"b\""}) {
    EXPECT_SAYS(job_set.output, part);
  }
  const auto pytorch = run_coupler(via("k8s", {"--manifest", "pytorchjob", "--image", "i", "-n",
                                               "6", "--machines", "3", "/x/My_train"}));
  for (const char* part : {"kind: PyTorchJob\n", "  name: my-train\n", "replicas: 2\n",
                           "- name: pytorch\n", "\"$(RANK)\"", "\"$(MASTER_ADDR)\""}) {
    EXPECT_SAYS(pytorch.output, part);
  }
}

TEST(ViaKubernetes, SecretAndRestarts_AreInTheManifest) {
  const auto words = [](const std::string& manifest) {
    return via("k8s", {"--manifest", manifest, "--image", "i", "--machines", "2", "--per-machine",
                       "1", "--name", "t1", "--max-restarts", "3", "-o",
                       "launch.secret_file=/home/me/s", "./train"});
  };
  const auto job_set = run_coupler(words("jobset"));
  for (const char* part :
       {"# First: kubectl create secret generic t1-secret --from-file=job.secret=/home/me/s\n",
        "spec:\n  failurePolicy:\n    maxRestarts: 3\n  network:\n",
        "\n              volumeMounts:\n              - name: job-secret\n"
        "                mountPath: /run/secrets/coupler/job.secret\n"
        "                subPath: job.secret\n",
        "\n            volumes:\n            - name: job-secret\n              secret:\n"
        "                secretName: t1-secret\n",
        "- \"launch.secret_file=\\\"/run/secrets/coupler/job.secret\\\"\"\n"}) {
    EXPECT_SAYS(job_set.output, part);
  }
  const auto pytorch = run_coupler(words("pytorchjob"));
  EXPECT_SAYS(pytorch.output, "spec:\n  runPolicy:\n    backoffLimit: 3\n  pytorchReplicaSpecs:\n");
  EXPECT_SAYS(pytorch.output, "      restartPolicy: OnFailure\n");
  EXPECT_SAYS(pytorch.output, "\n          volumes:\n          - name: job-secret\n");
}

TEST(ViaKubernetes, NoImage_OrANameItDoesNotTake_IsRefused) {
  const auto image = run_coupler(via("k8s", {"-n", "2", "./train"}));
  EXPECT_EQ(image.code, 2);
  EXPECT_SAYS(image.error, "needs --image");
  const auto name = run_coupler(via("k8s", {"--image", "i", "--name", "My_Job", "./train"}));
  EXPECT_EQ(name.code, 2);
  EXPECT_SAYS(name.error, "'My_Job' is not a valid Kubernetes name");
}

}  // namespace
}  // namespace coupler::testing_launch
