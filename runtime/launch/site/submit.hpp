#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "base/process/child.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "request/options.hpp"

namespace spc {

// --- tag memory ---

/// A registry's answer about a tag, as this user's srun received it. It is stored in the user's
/// keyring in the kernel, so that later steps of a job need not ask again: it leaves no file, other
/// users cannot read it, and it expires. All tags share one key, because the quota for a user's
/// keys is small and other programs need it as well.
struct RememberedTag {
  std::int64_t asked_at = 0;  ///< seconds since 1970
  /// Seconds for which the answer is valid: TagAge::is_fresh().
  std::int64_t tag_ttl = 0, job_ttl = 0;
  std::string answer;  ///< `REGISTRY/NAME:TAG@DIGEST`; empty: no answer

  [[nodiscard]] std::string str() const;
  static std::optional<RememberedTag> parse(const std::string& text);
};

/// All remembered answers, one line each, the latest first.
class TagMemory {
 public:
  /// Returns the answer unless it has expired. Times are seconds since 1970.
  [[nodiscard]] std::optional<RememberedTag> find(const std::string& image, std::int64_t now) const;
  void add(const std::string& image, const RememberedTag& tag, std::int64_t now,
           std::int64_t until);
  /// Expiry time of the last answer.
  [[nodiscard]] std::int64_t until() const;
  /// Returns as many lines as fit into `most` bytes.
  [[nodiscard]] std::string str(std::size_t most) const;
  /// Parses the lines and skips invalid ones.
  static TagMemory parse(const std::string& text);

 private:
  struct Line {
    std::int64_t until = 0;
    std::string image, tag;
  };
  std::vector<Line> lines_;
};

/// Returns the remembered answer; empty if the kernel has no keyrings or the user may not use them.
/// `image`: as typed.
std::optional<RememberedTag> remembered_tag(const std::string& image);
/// Stores the answer for so many seconds.
void remember_tag(const std::string& image, const RememberedTag& tag, unsigned seconds);

// --- tag question ---

/// The resolution of an image's tag, in srun, as the user, so that all nodes of the step run the
/// same image and none has to ask. `import resolve` queries the registry in the background while
/// Slurm creates the step. On any failure there is no answer, and the nodes resolve the tag
/// themselves.
class TagQuestion {
 public:
  /// Starts the query. Returns an empty optional if the image is not a tag of a registry, the
  /// node's policy does not query, or this machine cannot.
  static std::optional<TagQuestion> ask(const LaunchRequest& request);

  /// Returns `REGISTRY/NAME:TAG@DIGEST`, or an empty text if it is not known within `patience` from
  /// now, or kResolveSeconds from ask(). Then ends the query. A registry that has not answered by
  /// then is not asked again for ten minutes.
  std::string answer(std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;

  TagQuestion(std::string image, std::string pull)
      : image_(std::move(image)), pull_(std::move(pull)) {}
  [[nodiscard]] bool start();
  bool read_until(Clock::time_point end);
  [[nodiscard]] RememberedTag understood() const;

  std::string image_, pull_;  ///< as typed
  std::string known_;
  UniqueFd pipe_;
  Child child_;
  Clock::time_point began_ = Clock::now();
  std::int64_t asked_at_ = ::time(nullptr);
  std::string said_;
};

/// The queries of all components of a step.
class TagQuestions {
 public:
  void ask(const LaunchRequest& request);
  /// Returns all answers, separated by blanks: LaunchRequest::resolved. Ends the queries.
  const char* known(std::chrono::milliseconds patience);

 private:
  std::vector<TagQuestion> questions_;
  std::string known_;
};

// --- variables ---

/// Returns a line about each variable whose name is nearly that of an option's variable, and which
/// therefore has no effect. `environment`: NAME=VALUE, ended by nullptr.
std::vector<std::string> misspelt_variables(const char* const* environment);

// --- environment ---

/// An environment read by `scontainer read-environment`.
struct ReadEnvironment {
  std::string record;  ///< NamedEnvironment::add_to()
  std::vector<std::string> warnings;
};

/// In srun, sbatch and salloc: reads the environment, in a process of its own, so that slurmstepd
/// does not load code for it.
Result<ReadEnvironment> read_environment(const std::string& name);

// --- submit check ---

/// The job's destination in Slurm's notation; empty: not given, or unknown.
struct Destination {
  std::string partitions;  ///< `a,b`
  std::string constraint;  ///< `a100&nvme`
};

/// Information about an accepted request.
struct SubmitAnswer {
  std::vector<std::string> warnings;
  std::string digest;  ///< digest of the image; empty: not queried
};

/// In srun, sbatch and salloc: refuses requests that this machine's config.toml does not allow and,
/// with check_at_submit, an image that its registry does not have or that does not fit the nodes.
/// Accepts requests that cannot be checked here: the nodes decide in any case.
///
/// If the request is accepted and a job begins, starts the site's `pull_at_submit` as the user with
/// the image name. It may copy the image into the shared store while the job waits. It runs on its
/// own, and its result is ignored.
Result<SubmitAnswer> check_at_submission(const LaunchRequest& request,
                                         const Destination& destination);

}  // namespace spc
