// Values of keys in config.toml: checks, and how they are set.

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>

#include "base/listener.hpp"
#include "base/text.hpp"
#include "config/config.hpp"
#include "reference/reference.hpp"

namespace spc {

std::vector<std::string_view> feature_names();           // request/options.hpp
Result<void> check_mount_text(const std::string& text);  // request/mount_spec.hpp

// --- key ---

namespace {

void assign(bool& value, std::string_view text) { value = text == "true"; }
void assign(std::optional<bool>& value, std::string_view text) { value = text == "true"; }
void assign(std::string& value, std::string_view text) { value = text; }
void assign(std::vector<std::string>& value, std::string_view text) { value.emplace_back(text); }
void assign(PullPolicy& value, std::string_view text) {
  value = parse_pull_policy(std::string(text)).value_or(value);
}
/// A number, with K, M, G or T behind it if it is a size.
void assign(std::integral auto& value, std::string_view text) {
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  const auto power =
      unit == end ? std::string_view::npos : std::string_view("KMGTkmgt").find(*unit);
  if (error == std::errc() && power != std::string_view::npos) value <<= 10 * (power % 4 + 1);
}

using Texts = std::vector<std::string>;

Texts texts_of(bool value) { return {value ? "true" : "false"}; }
Texts texts_of(const std::optional<bool>& value) { return value ? texts_of(*value) : Texts(); }
Texts texts_of(const std::string& value) { return value.empty() ? Texts() : Texts{value}; }
Texts texts_of(const Texts& value) { return value; }
Texts texts_of(PullPolicy value) { return {name_of(value)}; }
Texts texts_of(std::integral auto value) { return {std::to_string(value)}; }

}  // namespace

Key::Kind Key::kind() const {
  if (std::holds_alternative<bool*>(member)) return Kind::flag;
  if (std::holds_alternative<Texts*>(member)) return Kind::list;
  const bool is_text = allowed.check != nullptr || std::holds_alternative<std::string*>(member) ||
                       std::holds_alternative<PullPolicy*>(member);
  return is_text ? Kind::text : Kind::number;
}

void Key::set(std::string_view text) const {
  std::visit([&](auto* value) { assign(*value, text); }, member);
}

std::vector<std::string> Key::texts() const {
  return std::visit([](const auto* value) { return texts_of(*value); }, member);
}

void set_defaults(const Keys& keys) {
  for (const Key& key : keys) {
    if (*key.default_text != '\0') key.set(key.default_text);
  }
}

void set_member(const Keys& keys, std::string_view name, std::string_view value) {
  for (const Key& key : keys) {
    if (key.name == name) key.set(value);
  }
}

}  // namespace spc

// --- allowed values ---

namespace spc::key {

namespace {

bool is_name(std::string_view text, std::string_view also) {
  const auto fits = [&](char c) {
    return is_shell_name_character(c) || also.find(c) != std::string_view::npos;
  };
  return !text.empty() && (text[0] < '0' || text[0] > '9') && std::ranges::all_of(text, fits);
}

/// Printable, at least one character.
bool is_line(const std::string& text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  return !text.empty() && std::ranges::none_of(text, is_control);
}

bool is_absolute(const std::string& text) { return is_line(text) && text.starts_with('/'); }
bool is_absolute_or_none(const std::string& text) { return text.empty() || is_absolute(text); }

bool is_seccomp(const std::string& text) {
  return text == "off" || text == "default" || is_absolute(text);
}

bool is_label_or_none(const std::string& text) {
  return text.empty() || (is_line(text) && text.find(' ') == std::string::npos);
}

bool is_image_rule(const std::string& text) { return is_line(text) && ImageRule::parse(text); }

/// Checks the form only: check_mount_text() checks the flags. One mount per text, and no relative
/// source, which would be relative to each job's own directory.
bool is_mount(const std::string& text) {
  return is_line(text) &&
         (text.starts_with('/') || text.starts_with("tmpfs:/") || text.starts_with("umount:/"));
}

bool is_assignment(const std::string& text) {
  const auto equals = text.find('=');
  return equals != std::string::npos && is_name(std::string_view(text).substr(0, equals), "");
}

bool is_variable(const std::string& text) { return is_name(text, "*?"); }

bool is_adapter(const std::string& text) {
  return is_line(text) && text.find_first_of(" /,") == std::string::npos;
}

bool is_hook(const std::string& text) {
  return is_line(text) && text.find('/') == std::string::npos;
}

bool is_upper_size(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (text.empty() || digits == 0 || std::min(digits, text.size()) > 12) return false;
  const std::string_view unit =
      digits == std::string::npos ? "" : std::string_view(text).substr(digits);
  const unsigned long long number = std::stoull(text);
  if (unit == "%") return number >= 1 && number <= 100;
  const bool is_unit =
      unit.size() == 1 && std::string_view("KMGTkmgt").find(unit[0]) != std::string_view::npos;
  return number > 0 && (unit.empty() || is_unit);
}

bool is_upper_size_or_none(const std::string& text) { return text.empty() || is_upper_size(text); }

bool is_byte_size(const std::string& text) {
  return text == "0" || (is_upper_size(text) && !text.ends_with('%'));
}

bool is_host(const std::string& text) { return parse_registry(text).has_value(); }

bool is_host_or_domain(const std::string& text) {
  return is_host(text.starts_with("*.") ? text.substr(2) : text);
}

bool is_plain_host(const std::string& text) {
  return !text.empty() && text.find_first_of(", ") == std::string::npos;
}

bool is_mirror(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (!is_host(text.substr(0, slash))) return false;
  return slash == std::string::npos ||
         ImageReference::parse("registry.invalid/" + text.substr(slash + 1)).has_value();
}

bool is_proxy_or_none(const std::string& text) {
  if (text.empty()) return true;
  std::string_view rest = text;
  for (const std::string_view scheme : {"http://", "https://", "socks5h://", "socks5://"}) {
    if (!rest.starts_with(scheme)) continue;
    rest.remove_prefix(scheme.size());
    break;
  }
  const auto plain = [](char c) { return c > 0x20 && c < 0x7f; };
  return !rest.empty() && rest.find("://") == std::string_view::npos &&
         std::ranges::all_of(rest, plain);
}

bool is_network(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return false;
  const std::string address = text.substr(0, slash);
  unsigned bits = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, bits);
  std::array<unsigned char, 16> bytes{};
  if (error != std::errc() || rest != end) return false;
  return (bits <= 32 && ::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) ||
         (bits <= 128 && ::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1);
}

bool is_port_range_or_none(const std::string& text) { return PortRange::parse(text).has_value(); }

bool is_architecture_or_none(const std::string& text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '/' || c == '_';
  };
  return text.empty() || (std::ranges::all_of(text, fits) && Platform::parse("linux/" + text));
}

bool is_version_or_none(const std::string& text) {
  return text.find_first_not_of("0123456789.") == std::string::npos && !text.starts_with('.') &&
         !text.ends_with('.');
}

bool is_mpi_type(const std::string& text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && std::ranges::all_of(text, fits);
}

constexpr char kSizeRule[] =
    "expected 1% to 100%, or a number of bytes with K, M, G or T behind it";

}  // namespace

const Allowed kPath{is_absolute_or_none, "expected an absolute path"};
const Allowed kFile{is_absolute_or_none, "expected the absolute path of a file"};
const Allowed kDirectory{is_absolute_or_none, "expected the absolute path of a directory"};
const Allowed kProgram{is_absolute_or_none, "expected the absolute path of a program"};
const Allowed kPaths{is_absolute, "expected an absolute path"};
const Allowed kLibraries{is_absolute, "expected the absolute path of a library"};
const Allowed kMount{.check = is_mount,
                     .rule = "expected SRC[:DST[:FLAGS]] with an absolute path of the node",
                     .parse = check_mount_text};
const Allowed kAssignment{is_assignment, "expected NAME=VALUE"};
const Allowed kVariable{is_variable, "expected NAME, or a pattern with * and ?"};
const Allowed kSeccomp{is_seccomp, "expected off, default, or the absolute path of a profile"};
const Allowed kProfile{is_label_or_none, "expected the name of a profile"};
const Allowed kLabel{is_label_or_none, "expected USER:ROLE:TYPE:LEVEL"};
const Allowed kImageRule{is_image_rule,
                         "expected PATTERN [user=NAME,...] [group=NAME,...] [partition=NAME,...]"};
const Allowed kFeature{.words = feature_names};
const Allowed kNamespace{.words = [] {
  return std::vector<std::string_view>{"net", "ipc", "uts", "pid", "cgroup"};
}};
const Allowed kAdapter{is_adapter, "expected an adapter such as mlx5_0, or a pattern with * and ?"};
const Allowed kHook{is_hook, "expected the name of a hook, such as 50-nccl"};
const Allowed kUpperSize{is_upper_size, kSizeRule};
const Allowed kUpperSizeOrNone{is_upper_size_or_none, kSizeRule};
const Allowed kByteSize{is_byte_size, "expected a number of bytes with K, M, G or T behind it"};
const Allowed kHost{is_host, "expected HOST or HOST:PORT"};
const Allowed kHostOrDomain{is_host_or_domain, "expected HOST[:PORT] or *.DOMAIN"};
const Allowed kPlainHost{is_plain_host, "expected one host or domain in each text"};
const Allowed kMirror{is_mirror, "expected HOST[:PORT][/PREFIX]"};
const Allowed kProxy{is_proxy_or_none, "expected http://HOST:PORT"};
const Allowed kNetwork{is_network, "expected ADDRESS/BITS"};
const Allowed kPortRange{is_port_range_or_none, "expected FIRST-LAST, from 1024 to 65535"};
const Allowed kArchitecture{is_architecture_or_none,
                            "expected an architecture such as amd64 or arm64"};
const Allowed kDriverVersion{is_version_or_none, "expected a version such as 550.54.15"};
const Allowed kLibraryVersion{is_version_or_none, "expected a version such as 2.28"};
const Allowed kMpiType{is_mpi_type, "expected a type as srun --mpi=list prints them"};
const Allowed kAnyText{[](const std::string&) { return true; }, ""};

}  // namespace spc::key
