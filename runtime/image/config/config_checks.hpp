#pragma once

#include <cstdint>
#include <string>

/// Checks for the keys of config.toml that concern images and registries.
namespace spc::key {

inline constexpr std::int64_t kYear = 366LL * 24 * 3600;

/// A number of bytes with K, M, G or T behind it, or 0.
bool is_byte_size(const std::string& text);
/// HOST or HOST:PORT
bool is_host(const std::string& text);
/// HOST[:PORT] or *.DOMAIN
bool is_host_or_domain(const std::string& text);
/// A host or domain as curl compares it.
bool is_plain_host(const std::string& text);
/// HOST[:PORT][/PREFIX]
bool is_mirror(const std::string& text);
/// A proxy with a port; without a scheme http is meant. Empty means none.
bool is_proxy_or_none(const std::string& text);
/// ADDRESS/BITS, of IPv4 or IPv6.
bool is_network(const std::string& text);
/// ARCHITECTURE[/VARIANT], as in image indexes. Empty means not known, as for the next.
bool is_architecture_or_none(const std::string& text);
/// Numbers with dots between them.
bool is_version_or_none(const std::string& text);
/// A word of srun's --mpi.
bool is_mpi_type(const std::string& text);
/// FIRST-LAST, ports that need no privilege. Empty means none.
bool is_port_range_or_none(const std::string& text);

}  // namespace spc::key
