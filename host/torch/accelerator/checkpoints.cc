#include "accelerator/checkpoints.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "accelerator/consistency_check.h"
#include "accelerator/profile.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/restore.h"
#include "checkpoint/snapshot.h"
#include "precision/precision.h"

namespace coupler {
namespace {

constexpr const char* kDefaultFolder = "checkpoints";

std::shared_ptr<store::Store> part_of(const std::shared_ptr<store::Store>& store,
                                      const char* name) {
  return store == nullptr ? nullptr : store::Store::with_prefix(store, name);
}

// Lowers the priority of this thread, and of what it starts, below that of training.
void stand_back() {
  constexpr int kSteps = 10;
  [[maybe_unused]] const int now = ::nice(kSteps);  // of this thread only, on Linux
}

std::vector<checkpoint::NamedFile> write_all(const checkpoint::CheckpointCommit::Save& save,
                                             const std::vector<checkpoint::StateFile>& files) {
  std::vector<checkpoint::NamedFile> written;
  for (const checkpoint::StateFile& file : files) {
    const std::string full = (std::filesystem::path(save.path) / file.name).string();
    auto metadata = file.metadata;
    metadata[checkpoint::kSaveKey] = save.identity;
    written.push_back({file.name, checkpoint::write_pieces(full, file.pieces, metadata)});
  }
  return written;
}

// Empty if the action throws nothing.
std::optional<Error> problem_in(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  }
  return std::nullopt;
}

// After these errors the job cannot continue.
bool ends_the_job(const Error& error) {
  return error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout;
}

// from: the checkpoint that is loaded, whose own gaps are left out; null: one is saved.
CheckpointContents contents_of(const checkpoint::TrainingState& job, const std::string& folder,
                               const checkpoint::Manifest* from) {
  std::vector<detail::ModelContents> models;
  const nlohmann::json saved =
      from == nullptr ? nlohmann::json() : from->state.value("models", nlohmann::json());
  for (const auto& state : job.models) {
    const strategy::Model& model = state->model();
    const size_t index = models.size();
    detail::ModelContents& contents = models.emplace_back();
    contents.identity = model.identity;
    contents.type = model.name;
    for (const auto& parameter : model.parameters) contents.tensors.push_back(parameter.name);
    for (const auto& [name, buffer] : model.buffers) contents.tensors.push_back(name);
    contents.aliases = model.aliases;
    if (saved.is_array() && index < saved.size()) {
      contents.left_out = checkpoint::left_out_of(saved[index]);
    }
  }
  return CheckpointContents(folder, std::move(models));
}

// Calls the hooks, and makes what they left out part of the job.
void call_hooks(const std::list<Checkpoints::Hook>& hooks, CheckpointContents& contents,
                checkpoint::TrainingState& job) {
  for (const Checkpoints::Hook& hook : hooks) hook(contents);
  for (const detail::ModelContents& model : contents.models()) {
    job.left_out.push_back(model.left_out);
  }
  job.extra = &contents.extra();
}

// The same for every file of one save. For older checkpoints without an identity: the step.
int64_t number_of_save(const checkpoint::Manifest& manifest) {
  constexpr size_t kDigits = 15;  // hex digits of the identity that fit into an int64_t
  return manifest.save.empty() ? manifest.steps
                               : std::stoll(manifest.save.substr(0, kDigits), nullptr, 16);
}

// saves: by rank. On several machines, the same path may be a different folder on each.
void check_same_save(const std::string& path, const std::vector<int64_t>& saves) {
  require_same(
      saves, "load_state", "finds a different save in " + path, ErrorCode::kMismatch,
      {.subject = path, .hint = "put checkpoint.dir on a file system that all machines share"});
}

int64_t left_out_signature(const std::vector<std::set<std::string>>& left_out) {
  SignatureHash hash;
  for (const std::set<std::string>& names : left_out) {
    hash.add(names.size());
    for (const std::string& name : names) hash.add(name);
  }
  return static_cast<int64_t>(hash.low());
}

// signatures: of what hooks left out, by rank.
void check_same_tensors(const std::vector<int64_t>& signatures) {
  require_same(signatures, "load_state", "loads other tensors of the models", ErrorCode::kUsage,
               {.subject = "load_state",
                .hint = "leave out the same tensors on every rank (register_load_state_pre_hook)"});
}

}  // namespace

Checkpoints::Checkpoints(Accelerator::Impl& impl)
    : impl_(impl),
      writer_(part_of(impl.store, "coupler/checkpoint"),
              {.rank = impl.process.rank,
               .world_size = impl.process.world_size,
               .timeout = impl.config.checkpoint.timeout,
               .total_limit = impl.config.checkpoint.total_limit}),
      questions_(part_of(impl.store, "coupler/load")) {
  if (by_itself()) {
    preemption_ =
        std::make_unique<Preemption>(part_of(impl.store, "coupler/preemption"), impl.process.rank,
                                     impl.process.world_size, impl.config.backend.timeout);
  }
}

Checkpoints::~Checkpoints() {
  if (writing_.valid()) writing_.wait();
}

checkpoint::TrainingState Checkpoints::job() const {
  checkpoint::TrainingState job{
      .rank = impl_.process.rank,
      .world_size = impl_.process.world_size,
      .sample_rank = impl_.sample_comm->rank(),
      .first_of_samples =
          groups::rank_in_group(impl_.groups->mesh(), groups::kWorld & ~groups::kSamples) == 0,
      .device = impl_.device,
      .models = {impl_.models.begin(), impl_.models.end()},
      .scaler = impl_.scaler.get(),
      .own_buffers = impl_.process.world_size > 1 && !impl_.config.training.broadcast_buffers};
  for (const auto& prepared : impl_.optimizers) {
    if (auto state = prepared.state.lock()) job.optimizers.push_back(std::move(state));
  }
  for (const auto& weak : impl_.schedulers) {
    if (auto core = weak.lock()) job.schedulers.push_back(std::move(core));
  }
  for (const auto& weak : impl_.loaders) {
    if (auto loader = weak.lock()) job.loaders.push_back(std::move(loader));
  }
  for (const auto& object : objects_) job.objects.push_back(object.get());
  return job;
}

int64_t Checkpoints::steps() const {
  int64_t result = 0;
  for (const auto& prepared : impl_.optimizers) {
    if (const auto state = prepared.state.lock()) result = std::max(result, state->steps());
  }
  return result;
}

std::string Checkpoints::folder_or(const std::string& folder) const {
  return !folder.empty() ? folder : by_itself() ? impl_.config.checkpoint.dir : kDefaultFolder;
}

std::future<std::string> Checkpoints::begin(const std::string& folder, bool async) {
  if (impl_.accumulation.pending()) {
    fail_usage(
        "a checkpoint was requested while gradients are being accumulated, which it would "
        "lose",
        "save_state", "save when accelerator.sync_gradients() is true, outside of accumulate()");
  }
  take_end();
  failure_.reset();
  failed_ = false;
  for (const auto& model : impl_.models) model->synchronize();
  const int64_t steps_now = steps();
  const checkpoint::CheckpointCommit::Save save = writer_.begin(folder, steps_now);
  std::shared_ptr<checkpoint::Snapshot> snapshot;
  const std::optional<Error> problem = problem_in([&] {
    checkpoint::TrainingState saved = job();
    CheckpointContents contents = contents_of(saved, save.path, nullptr);
    call_hooks(save_hooks, contents, saved);
    snapshot = std::make_shared<checkpoint::Snapshot>(
        checkpoint::take_snapshot(saved, async, copy_.get()));
    if (async) copy_ = snapshot;
  });
  checkpoint::Manifest facts{
      .steps = steps_now,
      .backend = impl_.plugin.name(),
      .plan = impl_.models.empty() ? "" : impl_.models.front()->description().text,
      .coupler_version = COUPLER_VERSION,
      .libtorch_version = TORCH_VERSION};
  if (snapshot != nullptr) facts.state = std::move(snapshot->state);
  return std::async(async ? std::launch::async : std::launch::deferred,
                    [this, save, problem, snapshot, async, facts = std::move(facts)]() mutable {
                      if (async) stand_back();
                      return writer_.finish(std::move(facts), [&] {
                        if (problem) throw Error(*problem);
                        return write_all(save, snapshot->files);
                      });
                    });
}

void Checkpoints::log_saved(const std::string& path) const {
  if (impl_.process.rank == 0) log(LogLevel::kInfo, "checkpoint", "saved " + path);
}

std::string Checkpoints::save(const std::string& folder) {
  std::string path = begin(folder_or(folder), /*async=*/false).get();
  saved_steps_ = steps();
  log_saved(path);
  return path;
}

// Waits for the current write to end, and logs the result.
void Checkpoints::take_end() {
  if (!writing_.valid()) return;
  try {
    log_saved(writing_.get());
  } catch (const Error& error) {
    if (ends_the_job(error)) throw;
    log(LogLevel::kError, "checkpoint", error.what());
    failure_ = error;
    failed_ = true;
  }
}

void Checkpoints::wait() {
  take_end();
  if (failure_) throw Error(*std::exchange(failure_, std::nullopt));
}

// In a loop a failed checkpoint does not end the job: older ones exist, and the next may succeed.
void Checkpoints::auto_save() {
  try {
    auto writing = begin(impl_.config.checkpoint.dir, impl_.config.checkpoint.async);
    if (impl_.config.checkpoint.async) {
      writing_ = std::move(writing);
    } else {
      log_saved(writing.get());
    }
    saved_steps_ = steps();
  } catch (const Error& error) {
    if (ends_the_job(error)) throw;
    log(LogLevel::kError, "checkpoint", error.what());
  }
}

void Checkpoints::on_step_end() {
  if (!by_itself()) return;
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    take_end();
  }
  int loops = 0;
  for (const auto& weak : impl_.loaders) {
    const auto loader = weak.lock();
    loops += loader != nullptr && loader->in_loop() ? 1 : 0;
  }
  // In a nested loop the outer body has not ended. Accumulating gradients are not saved.
  if (loops > 1 || impl_.accumulation.pending()) return;
  if (preemption_->due()) {
    const std::string path = save("");
    impl_.tracking.end();  // an uncaught exception skips destructors
    throw Error(ErrorCode::kPreempted,
                fmt::format("the job received SIGTERM; its state is saved in {}", path),
                {.subject = path, .hint = "start it again to continue"});
  }
  const int64_t every = impl_.config.checkpoint.every;
  if (every > 0 && steps() - saved_steps_ >= every) auto_save();
}

void Checkpoints::end_training() {
  take_end();
  for (const auto& model : impl_.models) model->synchronize();
  if (by_itself() && (failed_ || steps() != saved_steps_)) save("");
}

ScopeGuard Checkpoints::add_hook(std::list<Hook>& hooks, Hook hook) {
  const auto place = hooks.insert(hooks.end(), std::move(hook));
  return ScopeGuard([&hooks, place] { hooks.erase(place); });
}

std::string Checkpoints::of_rank_0(const std::function<std::string()>& find) {
  if (questions_ == nullptr) return find();
  const std::string key = std::to_string(asked_++);
  std::string found, problem;
  if (impl_.process.rank == 0) {
    try {
      found = find();
    } catch (const Error& error) {
      problem = error.what();
    }
    questions_->set(key, (problem.empty() ? "+" : "-") + (problem.empty() ? found : problem));
  } else {
    const auto said = questions_->get(key, impl_.config.checkpoint.timeout);
    if (!said || said->empty()) {
      throw Error(ErrorCode::kTimeout, "rank 0 did not say which checkpoint to load",
                  {.rank = 0, .subject = "checkpoint.timeout"});
    }
    (said->front() == '+' ? found : problem) = said->substr(1);
  }
  if (!problem.empty()) {
    throw Error(ErrorCode::kIo, problem, {.rank = 0, .subject = "checkpoint"});
  }
  return found;
}

// What `action` returns on each rank. If it throws on one rank, every rank throws.
std::vector<int64_t> Checkpoints::on_all_ranks(const std::function<int64_t()>& action) {
  int64_t number = 0;
  const std::optional<Error> problem = problem_in([&] { number = action(); });
  return check_consistency(*impl_.comm,
                           {.operation = "load_state", .number = number, .problem = problem});
}

// Empty if it was loaded on all ranks. Otherwise the reason why not.
std::optional<Error> Checkpoints::try_load(const std::string& path) {
  try {
    checkpoint::Manifest manifest;
    checkpoint::TrainingState state = job();
    const auto saves = on_all_ranks([&] {
      manifest = checkpoint::open_checkpoint(path);
      return number_of_save(manifest);
    });
    check_same_save(path, saves);
    CheckpointContents contents = contents_of(state, path, &manifest);
    check_same_tensors(on_all_ranks([&] {
      contents.extra() = checkpoint::read_extra(manifest, path);
      call_hooks(load_hooks, contents, state);
      checkpoint::check_fits(state, manifest, path);
      return left_out_signature(state.left_out);
    }));
    on_all_ranks([&] {
      checkpoint::restore(state, manifest, path);
      return 0;
    });
  } catch (const Error& error) {
    return error;
  }
  for (const auto& model : impl_.models) {
    model->parameters_changed(strategy::ParameterWriter::kCheckpoint);
  }
  precision::drop_cast_copies();
  saved_steps_ = steps();
  if (impl_.process.rank == 0) {
    log(LogLevel::kInfo, "checkpoint", fmt::format("loaded {}, step {}", path, saved_steps_));
  }
  return std::nullopt;
}

void Checkpoints::load(const std::string& given) {
  wait();
  const std::string folder = folder_or(given);
  const bool one =
      std::filesystem::exists(std::filesystem::path(folder) / checkpoint::kManifestName);
  if (!one && load_newest(folder)) return;
  if (const auto problem = try_load(of_rank_0([&] {
        if (!one) checkpoint::open_checkpoint(folder);  // throws an error that describes the folder
        return folder;
      }))) {
    throw Error(*problem);
  }
}

// Loads the newest readable checkpoint; returns false if there is none.
bool Checkpoints::load_newest(const std::string& folder) {
  std::optional<int64_t> below;  // checkpoints from this number on are damaged
  while (true) {
    const std::string path = of_rank_0([&]() -> std::string {
      std::error_code error;
      if (!std::filesystem::exists(folder, error)) {
        if (error) throw_io("open", folder, error.value());
        return "";
      }
      auto entries = checkpoint::list(folder);
      for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
        if (below && entry->number >= *below) continue;
        if (entry->manifest) return entry->path;
        log(LogLevel::kWarning, "checkpoint",
            fmt::format("{} is skipped: {}", entry->path, entry->reason));
      }
      return "";
    });
    if (path.empty()) return false;
    const auto problem = try_load(path);
    if (!problem) return true;
    if (problem->code() != ErrorCode::kIo) throw Error(*problem);
    if (impl_.process.rank == 0) {
      log(LogLevel::kWarning, "checkpoint",
          fmt::format("{} is skipped: {}", path, problem->what()));
    }
    below = std::stoll(path.substr(path.rfind('_') + 1));
  }
}

bool Checkpoints::resume() {
  const std::string& resume = impl_.config.checkpoint.resume;
  if (resume == "no") return false;
  if (resume != "auto") {
    load(resume);
    return true;
  }
  return by_itself() && load_newest(impl_.config.checkpoint.dir);
}

// ---- Accelerator ----

void Accelerator::register_object(std::unique_ptr<detail::Stateful> object) {
  impl_->checkpoints->add(std::move(object));
}
std::string Accelerator::save_state(const std::string& folder, CallSite) {
  return impl_->checkpoints->save(folder);
}
void Accelerator::load_state(const std::string& path, CallSite) { impl_->checkpoints->load(path); }
bool Accelerator::resume(CallSite) { return impl_->checkpoints->resume(); }
void Accelerator::wait_for_checkpoint() { impl_->checkpoints->wait(); }
void Accelerator::on_step_end(CallSite) {
  if (impl_->profile != nullptr) impl_->profile->step();
  impl_->checkpoints->on_step_end();
}
ScopeGuard Accelerator::register_save_state_pre_hook(CheckpointHook hook) {
  return impl_->checkpoints->add_hook(impl_->checkpoints->save_hooks, std::move(hook));
}
ScopeGuard Accelerator::register_load_state_pre_hook(CheckpointHook hook) {
  return impl_->checkpoints->add_hook(impl_->checkpoints->load_hooks, std::move(hook));
}

}  // namespace coupler
