#pragma once

#include <stddef.h>
#include <stdint.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace spank_container {

/// The address at which srun listens for the errors of a step's nodes: "PORT:TOKEN" in this
/// variable of the step, which no program sees. The name starts with SLURM because --export=NONE
/// removes all others.
inline constexpr char kReportVariable[] = "SLURM_SCONTAINER_REPORT";

using ReportToken = std::array<unsigned char, 16>;

/// One node's error on the wire, in memory layout: it contains no numbers, so byte order does not
/// matter.
struct ErrorReport {
  char magic[8] = {'s', 'p', 'c', 'e', 'r', 'r', '1', '\0'};
  ReportToken token{};
  char node[64] = {};
  char text[2000] = {};
};

/// srun's reply when it has accepted a report and will print it. Without it the node prints the
/// error itself.
inline constexpr char kReportTaken = 't';

struct ReportAddress {
  uint16_t port = 0;
  ReportToken token{};

  [[nodiscard]] std::string variable() const;
  static std::optional<ReportAddress> parse(std::string_view variable);
};

/// In a task: sends an error to the srun at this numeric IP address. False, within a second, if it
/// was not accepted.
bool report_error(const std::string& host, const ReportAddress& address, std::string_view node,
                  std::string_view text);

}  // namespace spank_container
