// --via k8s: the manifest, a JobSet or a PyTorchJob.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/launch/launch_modes.h"

namespace coupler::cli {
namespace {

constexpr const char* kSecretKey = "job.secret";
constexpr const char* kSecretPath = "/run/secrets/coupler/job.secret";
constexpr int kPort = 29500;  // of the first pod, which has its own address

// A JSON string is also a YAML string.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Kubernetes expands $(NAME) in arguments; this keeps the user's own arguments literal.
std::string literal(std::string text) {
  for (size_t at = 0; (at = text.find("$(", at)) != std::string::npos; at += 3) {
    text.insert(at, "$");
  }
  return text;
}

bool is_label(const std::string& name) {
  const auto fits = [](unsigned char c) {
    return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
  };
  return !name.empty() && name.size() <= 40 && std::all_of(name.begin(), name.end(), fits) &&
         name.front() != '-' && name.back() != '-';
}

std::string job_name(const LaunchPlan& plan) {
  if (!plan.name.empty()) {
    if (!is_label(plan.name)) {
      fail_usage(fmt::format("--name: '{}' is not a valid Kubernetes name: use lower-case letters, "
                             "digits, and '-' inside, at most 40 characters",
                             plan.name),
                 "--name");
    }
    return plan.name;
  }
  std::string name;
  for (const unsigned char c : std::filesystem::path(plan.program).filename().string()) {
    name += std::isalnum(c) != 0 ? static_cast<char>(std::tolower(c)) : '-';
  }
  name.resize(std::min<size_t>(name.size(), 40));
  return is_label(name) ? name : "coupler-" + std::to_string(plan.processes);
}

// Several machines authenticate each other by a file that all have: here a Secret.
bool has_secret(const LaunchPlan& plan) {
  return plan.machines > 1 && !plan.config.launch.secret_file.empty();
}

std::string secret_name(const LaunchPlan& plan) { return job_name(plan) + "-secret"; }

struct Meeting {
  std::string machine_rank, address, port;
};

// `coupler launch` as each pod runs it.
std::vector<std::string> pod_command(const LaunchPlan& plan, const Meeting& meeting) {
  std::vector<std::string> words = {"coupler", "launch"};
  const auto add = [&](const std::string& word, const std::string& value) {
    words.push_back(word);
    words.push_back(value);
  };
  add("--per-machine", std::to_string(plan.per_machine()));
  add("--machines", std::to_string(plan.machines));
  if (plan.machines > 1) {
    add("--machine-rank", meeting.machine_rank);
    add("--main-address", meeting.address);
    add("--main-port", meeting.port);
  }
  if (plan.config_given) {
    add("--config", literal(plan.config.file));
  }
  for (const auto& key_value : plan.overrides) {
    add("-o", literal(key_value));
  }
  if (has_secret(plan)) {
    add("-o", fmt::format("launch.secret_file=\"{}\"", kSecretPath));
  }
  if (plan.bind != Bind::kNone) {
    add("--bind", plan.bind == Bind::kCore ? "core" : "numa");
  }
  if (!plan.log_dir.empty()) {
    add("--log-dir", literal(plan.log_dir));
  }
  if (plan.prefix) {
    words.emplace_back("--prefix");
  }
  words.emplace_back("--");
  for (const auto& argument : plan.arguments) {
    words.push_back(literal(argument));
  }
  return words;
}

std::string container(const LaunchPlan& plan, const std::string& name, const Meeting& meeting,
                      const std::string& indent) {
  std::string text = fmt::format("{0}- name: {1}\n{0}  image: {2}\n{0}  command:\n", indent, name,
                                 quoted(plan.image));
  for (const auto& word : pod_command(plan, meeting)) {
    text += fmt::format("{}  - {}\n", indent, quoted(word));
  }
  if (has_secret(plan)) {
    // With subPath it is a file, not a link.
    text += fmt::format(
        "{0}  volumeMounts:\n"
        "{0}  - name: job-secret\n"
        "{0}    mountPath: {1}\n"
        "{0}    subPath: {2}\n"
        "{0}    readOnly: true\n"
        "{0}volumes:\n"
        "{0}- name: job-secret\n"
        "{0}  secret:\n"
        "{0}    secretName: {3}\n"
        "{0}    defaultMode: 0400\n",
        indent, kSecretPath, kSecretKey, secret_name(plan));
  }
  return text;
}

std::string job_set(const LaunchPlan& plan, const std::string& name) {
  // The address of pod 0 of job 0 of "workers"; a JobSet's network is named after the JobSet.
  const Meeting meeting{"$(JOB_COMPLETION_INDEX)", fmt::format("{0}-workers-0-0.{0}", name),
                        std::to_string(kPort)};
  return fmt::format(
             "apiVersion: jobset.x-k8s.io/v1alpha2\n"
             "kind: JobSet\n"
             "metadata:\n"
             "  name: {0}\n"
             "spec:\n"
             "{2}"
             "  network:\n"
             "    enableDNSHostnames: true\n"
             "    publishNotReadyAddresses: true\n"
             "  replicatedJobs:\n"
             "  - name: workers\n"
             "    replicas: 1\n"
             "    template:\n"
             "      spec:\n"
             "        completionMode: Indexed\n"
             "        parallelism: {1}\n"
             "        completions: {1}\n"
             "        backoffLimit: 0\n"
             "        template:\n"
             "          spec:\n"
             "            restartPolicy: Never\n"
             "            containers:\n",
             name, plan.machines,
             plan.max_restarts > 0
                 ? fmt::format("  failurePolicy:\n    maxRestarts: {}\n", plan.max_restarts)
                 : "") +
         container(plan, "worker", meeting, "            ");
}

std::string replica(const LaunchPlan& plan, const char* kind, int replicas) {
  // The operator sets RANK and the master's address in each pod, and requires this container name.
  const Meeting meeting{"$(RANK)", "$(MASTER_ADDR)", "$(MASTER_PORT)"};
  return fmt::format(
             "    {}:\n"
             "      replicas: {}\n"
             "      restartPolicy: {}\n"
             "      template:\n"
             "        spec:\n"
             "          containers:\n",
             kind, replicas, plan.max_restarts > 0 ? "OnFailure" : "Never") +
         container(plan, "pytorch", meeting, "          ");
}

std::string pytorch_job(const LaunchPlan& plan, const std::string& name) {
  std::string text = fmt::format(
      "apiVersion: kubeflow.org/v1\n"
      "kind: PyTorchJob\n"
      "metadata:\n"
      "  name: {}\n"
      "spec:\n"
      "{}"
      "  pytorchReplicaSpecs:\n",
      name,
      plan.max_restarts > 0 ? fmt::format("  runPolicy:\n    backoffLimit: {}\n", plan.max_restarts)
                            : "");
  text += replica(plan, "Master", 1);
  return plan.machines > 1 ? text + replica(plan, "Worker", plan.machines - 1) : text;
}

}  // namespace

std::string kubernetes_manifest(const LaunchPlan& plan) {
  if (plan.image.empty()) {
    fail_usage("--via k8s needs --image, an image with the program and `coupler`", "--image",
               "--image registry.example/train:1");
  }
  const auto name = job_name(plan);
  const std::string manifest =
      plan.manifest == "jobset" ? job_set(plan, name) : pytorch_job(plan, name);
  return has_secret(plan)
             ? fmt::format("# First: kubectl create secret generic {} --from-file={}={}\n{}",
                           secret_name(plan), kSecretKey,
                           shell_word(plan.config.launch.secret_file), manifest)
             : manifest;
}

}  // namespace coupler::cli
