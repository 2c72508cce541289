#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spc {

// --- finding ---

/// The result of one check, and how to fix it.
struct Finding {
  enum class Verdict { ok, warning, failed };
  std::string what;
  Verdict verdict = Verdict::ok;
  std::string detail;  ///< what was found
  std::string cure;    ///< empty if no action is needed
};

// --- failure ---

/// Strings that must occur in this order on one line, case-sensitive; the longest has at least four
/// characters. There are no wildcards: the cost of a search is proportional to the line, whatever
/// it contains.
using Pattern = std::vector<std::string_view>;

/// A row of the table: a failure whose usual messages do not name the cause.
struct Failure {
  const char* id;                 ///< stable, for scripts
  const char* says;               ///< summary
  std::vector<Pattern> patterns;  ///< any of them matches
  const char* cause;
  const char* cure;
  const char* look = "";                 ///< how to distinguish several causes; may be empty
  std::vector<const char*> checks = {};  ///< related checks of preflight(), by name
  std::vector<const char*> told_by =
      {};                ///< IDs: if one of these was found, this failure is its consequence
  bool general = false;  ///< counts only in lines that no other failure matches
};

// Known failures. To add one, add a row to a table and a real line to the unit test.

/// CUDA, NVML, NCCL, Open MPI, PMIx, UCX, libfabric, Intel MPI, Cray MPICH and PSM2.
const std::vector<Failure>& gpu_failures();
/// Slurm, programs, the loader, files, packages, the network and PyTorch's rendezvous.
const std::vector<Failure>& program_failures();
/// Returns all of them, then the rows of this project's messages. The last is `own-message`, for
/// those with a hint.
const std::vector<const Failure*>& known_failures();

// --- diagnose ---

/// A known failure found in a text.
struct Recognised {
  const Failure* failure = nullptr;
  std::uint64_t line = 0;   ///< first occurrence, from 1
  std::uint64_t times = 0;  ///< number of lines with it
  std::string text;         ///< excerpt of the first such line, printable, at most 300 bytes
  std::string task;  ///< of the first such line, as labelled by srun --label or PyTorch; or empty
  std::string cause, cure;   ///< the failure's, or those of a message of this project
  bool consequence = false;  ///< caused by another failure that was found
};

/// Reads the output of a job and collects the known failures in it. Accepts pieces of any size,
/// also of binary data, and buffers at most 8 KiB of a line: longer lines are searched in parts,
/// which overlap by 1 KiB. Terminal control sequences are removed.
class Diagnosis {
 public:
  Diagnosis();
  void read(std::string_view piece);
  /// Returns the causes in order of first occurrence, then their consequences.
  [[nodiscard]] std::vector<Recognised> findings();
  [[nodiscard]] std::uint64_t lines() const { return lines_; }

 private:
  enum class Escape { none, begun, control, title };
  struct Seen {
    Recognised what;
    std::uint64_t last_line = 0;
    bool counts = false;  // in a line that successful jobs do not print
  };
  void append(std::string_view text);
  void skip_escape(char c);
  void examine(std::string_view text);
  void note(Seen& seen, std::string_view line, std::size_t begin, std::size_t end);
  /// Returns whether the line is a message of this project with a hint.
  bool note_own(std::string_view line);

  std::string line_;
  Escape escape_ = Escape::none;  // the part of a control sequence that has been read
  std::string task_;              // label of the current line, once it is `labelled_`
  bool labelled_ = false;
  bool line_begins_ = true;
  std::uint64_t lines_ = 0;  // lines started so far
  std::vector<Seen> seen_;   // known_failures() in their order, then messages of this project
};

std::vector<Recognised> diagnose(std::string_view text);

}  // namespace spc
