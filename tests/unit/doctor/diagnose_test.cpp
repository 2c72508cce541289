#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "doctor/diagnose.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/doctor/recorded_lines.hpp"

using namespace spc;

namespace {

std::vector<std::string> ids(const std::vector<Recognised>& findings) {
  std::vector<std::string> ids;
  for (const Recognised& one : findings) ids.emplace_back(one.failure->id);
  return ids;
}

/// Puts colours around each word.
std::string coloured(std::string_view text) {
  std::string all = "\x1b[1;31m";
  for (const char c : text) all += c == ' ' ? "\x1b[0m\x1b[38;5;208m \x1b[K" : std::string(1, c);
  return all + "\x1b]8;;file://x\x1b\\\x1b[m";
}

}  // namespace

TEST_CASE("diagnosis_matches_each_recorded_line") {
  for (const Line& line : lines()) {
    INFO(line.text);
    CHECK(ids(diagnose(line.text)) == line.failures);
  }
}

TEST_CASE("diagnosis_matches_lines_with_prefixes_and_colours") {
  for (const Line& line : lines()) {
    INFO(line.text);
    const std::string text = line.text;
    for (const char* prefix :
         {"3: ", "127: ", "[rank3]: ", "[rank12]:[rank12]: ", "2026-11-27T06:00:00.123 ",
          "[2026-11-27 06:00:00] ERROR ", "[1,3]<stderr>: ", "(worker pid=812, ip=10.0.0.7) "}) {
      CHECK(ids(diagnose(prefix + text)) == line.failures);
    }
    CHECK(ids(diagnose("first\r\n" + text + "\r\nlast\r\n")) == line.failures);
    CHECK(ids(diagnose("4: " + coloured(text) + "\n")) == line.failures);
    CHECK(ids(diagnose("epoch 1: 50%\repoch 1: 60%\r" + text)) == line.failures);
  }
}

TEST_CASE("diagnosis_reports_passing_lines_only_beside_failure") {
  const std::string failure = "\nRuntimeError: No CUDA GPUs are available\n";
  for (const Line& line : passing_lines()) {
    INFO(line.text);
    CHECK(diagnose(line.text).empty());
    CHECK(diagnose(coloured(line.text)).empty());
    std::vector<std::string> both = ids(diagnose(line.text + failure));
    CHECK(std::count(both.begin(), both.end(), "cuda-no-device") == 1);
    both.erase(std::remove(both.begin(), both.end(), "cuda-no-device"), both.end());
    CHECK(both == line.failures);
  }
}

TEST_CASE("diagnosis_has_a_recorded_line_for_each_failure") {
  std::set<std::string> shown;
  for (const auto* all : {&lines(), &passing_lines()}) {
    for (const Line& line : *all) shown.insert(line.failures.begin(), line.failures.end());
  }
  std::set<std::string> known;
  for (const Failure* failure : known_failures()) CHECK(known.insert(failure->id).second);
  CHECK(shown == known);
}

TEST_CASE("diagnosis_names_cause_cure_and_existing_failures") {
  std::set<std::string> known;
  for (const Failure* failure : known_failures()) known.insert(failure->id);
  for (const Failure* failure : known_failures()) {
    INFO(failure->id);
    CHECK(std::string(failure->says).size() > 10);
    CHECK(std::string(failure->cause).size() > 10);
    CHECK(std::string(failure->cure).size() > 10);
    for (const char* other : failure->told_by) CHECK(known.count(other) == 1);
    for (const Pattern& pattern : failure->patterns) {
      REQUIRE(!pattern.empty());
      std::size_t longest = 0;
      for (const auto piece : pattern) longest = std::max(longest, piece.size());
      CHECK(longest >= 4);
    }
  }
}

TEST_CASE("diagnosis_ignores_output_of_successful_jobs") {
  for (const char* line :
       {"epoch 1: loss 0.25",
        "unknown error rate 0.1",
        "no such device in the catalogue",
        "Using 4 GPUs",
        "port 999 of cu",
        "Linking to libcudart.so.12",
        "0 errors, 0 warnings",
        "libcuda.so.1 => /usr/lib/x86_64-linux-gnu/libcuda.so.1 (0x00007f)",
        "NCCL version 2.21.5+cuda12.4",
        "NCCL_DEBUG=INFO",
        "UCX_TLS=rc,ud,sm,self",
        "node01:1:1 [0] NCCL INFO Using network Socket",
        "node01:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>",
        "node01:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>",
        "node01:1:1 [0] NCCL INFO comm 0x5 rank 0 nranks 8 - Init COMPLETE",
        "node01:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "node01:1:1 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "[1700000000.1] [node01:9:0] ucp_worker.c:1720 UCX  INFO  ep_cfg[0]: tag(posix/memory "
        "cma/memory rc_verbs/mlx5_0:1);",
        "libfabric:99:1700000000::core:core:fi_getinfo_():1141<info> Found provider tcp",
        "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: "
        "97 "
        "- Address family not supported by protocol).",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node01]:29500 "
        "(errno: 111 - Connection refused).",
        "[c10d] The server socket on [::ffff:10.10.12.11]:25000 has timed out, will retry.",
        "WARNING: The script f2py is installed in '/home/alice/.local/bin' which is not on PATH.",
        "Matplotlib created a temporary cache directory at /tmp/matplotlib-x because the default "
        "path (/.config/matplotlib) is not a writable directory",
        "WARNING: There was an error initializing an OpenFabrics device.",
        "bash: no job control in this shell",
        "tput: No value for $TERM and no -T specified",
        "srun: job 42 queued and waiting for resources",
        "srun: job 42 has been allocated resources",
        "slurmstepd: info: task/affinity: batch_bind: job 42 CPU final HW mask",
        "Time limit: 01:00:00",
        "TimeLimit=1-00:00:00",
        "memory limit 64 GB, 31 GB used",
        "Disk quota: 13 GB of 50 GB used",
        "space left on device: 120 GB",
        "killed 0 processes",
        "max_memory_allocated: 70.1 GB, out of 80 GB memory",
        "pip: certificate store loaded",
        "HTTP/1.1 200 OK",
        "x-ratelimit-remaining: 99",
        "test_permission_denied ... ok",
        "import locale",
        "LC_ALL=C.UTF-8",
        "python 3.12.1",
        "Requirement already satisfied: pip",
        "spank-container: pulling image \"debian:12\": 40 % of 50 MB",
        "spank-container: pull image \"r:5000/a:1\": fetch manifest: connection refused (hint: "
        "check "
        "that the registry runs on this port): trying the next one",
        "spank-container: warning: --container-gpu does not change the container \"x\", which is "
        "running already (hint: use it in its first step)",
        "pyxis: importing docker image: debian:12",
        "pyxis: imported docker image: debian:12",
        "see https://example.org/pyxis: install it (hint: read)"}) {
    INFO(line);
    CHECK(diagnose(line).empty());
    CHECK(diagnose(std::string("3: ") + line + "\r\n").empty());
  }
}

TEST_CASE("diagnosis_takes_cause_and_cure_from_own_messages") {
  const auto findings = diagnose(
      "2: spank-container: pull image \"r:5000/a:1\": no such host (hint: check the registry's "
      "name)\n"
      "3: spank-container: pull image \"r:5000/a:1\": no such host (hint: check the registry's "
      "name)\n"
      "\x1b[31mscontainer:\x1b[0m --env: invalid format (it says: x (hint: y)) (hint: NAME=VALUE)  "
      "\r\n");
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].cause == "pull image \"r:5000/a:1\": no such host");
  CHECK(findings[0].cure == "check the registry's name");
  CHECK(findings[0].times == 2);
  CHECK(findings[0].task == "2");
  CHECK(findings[1].cause == "--env: invalid format (it says: x (hint: y))");
  CHECK(findings[1].cure == "NAME=VALUE");
}

TEST_CASE("diagnosis_keeps_few_of_many_own_messages") {
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += "spank-container: error " + std::to_string(i) + " (hint: do something)\n";
  CHECK(diagnose(text).size() == 20);
}

/// Returns whether a line of the suites' messages is no error: a warning, progress, a value that
/// was given (`x:y:`), or a line that precedes the error itself.
bool is_no_error(const std::string& line) {
  for (const char* part : {"warning: ", "pyxis: import", "pyxis: failed to import"}) {
    if (line.find(part) != std::string::npos) return true;
  }
  return line.ends_with(':');
}

TEST_CASE("diagnosis_knows_the_messages_of_the_suites") {
  unsigned messages = 0;
  for (const auto& file : std::filesystem::directory_iterator(SPC_GOLDEN_MESSAGES)) {
    std::ifstream stream(file.path());
    for (std::string line; std::getline(stream, line);) {
      if (line.empty() || line.starts_with("== ") || is_no_error(line)) continue;
      const bool has_prefix = line.starts_with("spank-container: ") || line.starts_with("pyxis: ");
      const std::string text = has_prefix ? line : "spank-container: " + line;
      INFO(file.path().string() << ": " << text);
      const auto findings = diagnose(text);
      CHECK(findings.size() >= 1);
      for (const Recognised& one : findings) CHECK(one.cure.size() > 3);
      ++messages;
    }
  }
  CHECK(messages > 150);
}

TEST_CASE("diagnosis_of_binary_input_ends_and_stays_printable") {
  std::string text;
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < (std::size_t{2} << 20); ++i) {
    state = state * 1664525 + 1013904223;
    text += static_cast<char>(state >> 24);
  }
  CHECK(diagnose(text).empty());
  // A control sequence without an end takes no more than its line.
  const auto findings = diagnose(text + "\n\x1b]0;" + text.substr(0, 100'000) +
                                 "\n\x1b[31\nNo CUDA GPUs are available" + std::string(9000, '\0'));
  REQUIRE(ids(findings) == std::vector<std::string>{"cuda-no-device"});
  CHECK(std::all_of(findings[0].text.begin(), findings[0].text.end(),
                    [](char c) { return c >= 0x20 && c < 0x7f; }));
}

TEST_CASE("diagnosis_of_repeated_beginnings_is_linear") {
  // The beginnings of all patterns, again and again: each line is searched once for each of them.
  std::string line;
  for (const Failure* failure : known_failures()) {
    for (const Pattern& pattern : failure->patterns) line += pattern.front();
  }
  std::string text;
  while (text.size() < (std::size_t{8} << 20)) text += line;
  CHECK_FALSE(diagnose(text).empty());
}

TEST_CASE("diagnosis_reports_first_line_task_and_count") {
  const auto findings = diagnose(
      "0: starting\n"
      "3: RuntimeError: No CUDA GPUs are available\r\n"
      "1: RuntimeError: No CUDA GPUs are available\n"
      "\x1b[31m12: \x1b[0mAddress already in use\n"
      "[rank7]: torch.OutOfMemoryError: CUDA out of memory.\n");
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].line == 2);
  CHECK(findings[0].times == 2);
  CHECK(findings[0].task == "3");
  CHECK(findings[0].text == "3: RuntimeError: No CUDA GPUs are available");
  CHECK(findings[1].line == 4);
  CHECK(findings[1].task == "12");
  CHECK(findings[1].text == "12: Address already in use");
  CHECK(findings[2].task == "7");
}

TEST_CASE("diagnosis_of_open_mpi_without_pmix_is_one_failure") {
  const auto findings = diagnose(
      "[vm:18132] OPAL ERROR: Unreachable in file ext3x_client.c at line 112\n"
      "--------------------------------------------------------------------------\n"
      "The application appears to have been direct launched using \"srun\",\n"
      "but OMPI was not built with SLURM's PMI support and therefore cannot\n"
      "execute. There are several options for building PMI support under\n"
      "SLURM, depending upon the SLURM version you are using:\n");
  CHECK(ids(findings) == std::vector<std::string>{"pmi-none"});
  CHECK(findings[0].times == 3);
}

TEST_CASE("diagnosis_lists_causes_before_consequences") {
  const auto findings = diagnose(
      "NCCL WARN Connection closed by remote peer node01<1>\n"
      "RuntimeError: No CUDA GPUs are available\n");
  CHECK(ids(findings) == std::vector<std::string>{"cuda-no-device", "nccl-peer"});
  CHECK_FALSE(findings[0].consequence);
  CHECK(findings[1].consequence);
  CHECK_FALSE(diagnose("NCCL WARN Connection closed by remote peer node01<1>\n")[0].consequence);
}

TEST_CASE("diagnosis_is_independent_of_read_sizes") {
  std::string text;
  for (const Line& line : lines()) text += std::string(line.text) + "\n";
  const auto whole = diagnose(text);
  for (const auto step : std::to_array<std::size_t>({1, 7, 4096})) {
    Diagnosis diagnosis;
    for (std::size_t at = 0; at < text.size(); at += step)
      diagnosis.read(std::string_view(text).substr(at, step));
    const auto parts = diagnosis.findings();
    REQUIRE(ids(parts) == ids(whole));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(parts[i].line == whole[i].line);
      CHECK(parts[i].times == whole[i].times);
      CHECK(parts[i].text == whole[i].text);
    }
    CHECK(diagnosis.lines() == lines().size());
  }
}

TEST_CASE("diagnosis_of_endless_line_counts_failure_once") {
  const std::string filler(10'000, 'x');
  for (std::size_t shift = 0; shift < 64; ++shift) {
    const std::string line = std::string(8192 - 32 + shift - 16, 'y') + "no CUDA-capable device" +
                             filler + "no CUDA-capable device" + filler;
    const auto findings = diagnose("first\n" + line + "\nNCCL WARN Connection refused");
    REQUIRE(ids(findings) == std::vector<std::string>{"cuda-no-device", "nccl-peer"});
    CHECK(findings[0].times == 1);
    CHECK(findings[0].line == 2);
    CHECK(findings[0].text.find("no CUDA-capable device") != std::string::npos);
    CHECK(findings[1].line == 3);
  }
}

TEST_CASE("diagnosis_text_is_short_and_printable") {
  const auto findings = diagnose("\x1b[31m\x07" + std::string(5000, 'a') +
                                 "Address already in use\x1b]0;title\x07\x80\n");
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].text.size() <= 300);
  CHECK(std::all_of(findings[0].text.begin(), findings[0].text.end(),
                    [](char c) { return c >= 0x20 && c < 0x7f; }));
  CHECK(findings[0].text.find("Address already in use") != std::string::npos);
}
