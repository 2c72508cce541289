#include "image/reference/reference.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxReference = 4096;
constexpr std::size_t kMaxRepository =
    255;  // what every known registry accepts (distribution spec, "name")
constexpr std::size_t kMaxTag = 128;

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return is_lower(c) || is_upper(c) || is_digit(c); }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (is_upper(c)) c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// Without what would be the query of a URL.
Error bad_reference(std::string_view text, const std::string& why) {
  return Error(ErrorKind::invalid,
               formatted("image {}: {}", in_quotes(text.substr(0, text.find('?'))), why));
}

/// [a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*
Result<void> check_component(std::string_view whole, std::string_view component) {
  if (component.empty())
    return bad_reference(whole,
                         "the repository has an empty component (\"//\", or \"/\" at an end)");
  if (std::any_of(component.begin(), component.end(), is_upper)) {
    return bad_reference(whole, "repository names have no upper-case letters")
        .hint("write " + in_quotes(lower(component)));
  }
  for (std::size_t i = 0; i < component.size();) {
    const char c = component[i];
    if (is_lower(c) || is_digit(c)) {
      ++i;
      continue;
    }
    if (c != '.' && c != '_' && c != '-') {
      return bad_reference(whole, "repository names consist of a-z, 0-9, '.', '_', '-' and '/'");
    }
    std::size_t end = i;
    while (end < component.size() && component[end] == c) ++end;
    const std::size_t longest = c == '.' ? 1 : c == '_' ? 2 : component.size();
    const bool next_ok =
        end < component.size() && (is_lower(component[end]) || is_digit(component[end]));
    if (i == 0 || !next_ok || end - i > longest) {
      return bad_reference(whole, formatted("in repository component {} '.', '_', '__' or '-' must "
                                            "stand between letters or digits",
                                            in_quotes(component)));
    }
    i = end;
  }
  return {};
}

Result<void> check_tag(std::string_view whole, std::string_view tag) {
  if (tag.empty()) return bad_reference(whole, "the tag after ':' is empty");
  if (tag.size() > kMaxTag) return bad_reference(whole, "a tag has at most 128 characters");
  const auto ok = [](char c) { return is_alnum(c) || c == '_' || c == '.' || c == '-'; };
  if (!std::all_of(tag.begin(), tag.end(), ok))
    return bad_reference(whole, "tags consist of letters, digits, '_', '.' and '-'");
  if (tag[0] == '.' || tag[0] == '-')
    return bad_reference(whole, "a tag begins with a letter, a digit or '_'");
  return {};
}

Result<void> check_port(std::string_view whole, std::string_view port) {
  unsigned value = 0;
  const bool digits =
      !port.empty() && port.size() <= 5 && std::all_of(port.begin(), port.end(), is_digit);
  if (digits) {
    for (const char c : port) value = value * 10 + static_cast<unsigned>(c - '0');
  }
  if (!digits || value < 1 || value > 65535)
    return bad_reference(whole,
                         formatted("port {} is not a number from 1 to 65535", in_quotes(port)));
  return {};
}

Result<void> check_host_name(std::string_view whole, std::string_view host) {
  if (host.empty()) return bad_reference(whole, "the registry's name is empty");
  if (host.size() > 253)
    return bad_reference(whole, "the registry's name is longer than 253 characters");
  for (std::string_view rest = host;;) {
    const std::size_t dot = rest.find('.');
    const std::string_view label = rest.substr(0, dot);
    const auto ok = [](char c) { return is_alnum(c) || c == '-'; };
    if (label.empty() || label.size() > 63 || !std::all_of(label.begin(), label.end(), ok) ||
        label.front() == '-' || label.back() == '-') {
      return bad_reference(whole, formatted("registry {} is not a host name", in_quotes(host)));
    }
    if (dot == std::string_view::npos) return {};
    rest.remove_prefix(dot + 1);
  }
}

/// Checks HOST[:PORT] and returns it in lower case, aliases of Docker Hub as docker.io.
Result<std::string> checked_registry(std::string_view whole, std::string_view text) {
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos)
      return bad_reference(whole, "the IPv6 address has no closing ']'");
    const std::string address(text.substr(1, close - 1));
    in6_addr parsed{};
    if (::inet_pton(AF_INET6, address.c_str(), &parsed) != 1) {
      return bad_reference(whole, in_quotes(address) + " is not an IPv6 address");
    }
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty()) {
      if (rest[0] != ':') return bad_reference(whole, "only a port may follow the IPv6 address");
      SPC_TRY(check_port(whole, rest.substr(1)));
    }
    return lower(text);
  }
  const std::size_t colon = text.find(':');
  SPC_TRY(check_host_name(whole, text.substr(0, colon)));
  if (colon != std::string_view::npos) SPC_TRY(check_port(whole, text.substr(colon + 1)));
  std::string name = lower(text);
  if (name == "index.docker.io" || name == "registry-1.docker.io") name = "docker.io";
  return name;
}

bool names_registry(std::string_view component) {
  return component == "localhost" || component.find_first_of(".:") != std::string_view::npos;
}

/// True when what follows an '@' was meant as a digest.
bool looks_like_digest(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || text.find('/') != std::string_view::npos) return false;
  const std::string algorithm = lower(text.substr(0, colon));
  if (algorithm.starts_with("sha") || algorithm == "md5" || algorithm.starts_with("blake"))
    return true;
  const auto hex = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  };
  const std::string_view digits = text.substr(colon + 1);
  return digits.size() >= 32 && std::all_of(digits.begin(), digits.end(), hex);
}

}  // namespace

Result<std::string> parse_registry(std::string_view text) { return checked_registry(text, text); }

Result<ImageReference> ImageReference::parse(std::string_view text,
                                             std::string_view default_registry) {
  if (text.empty()) return Error(ErrorKind::invalid, "the image's name is empty");
  if (text.size() > kMaxReference)
    return bad_reference(text, "the name is longer than 4096 characters");
  const auto printing = [](char c) { return c > 0x20 && c < 0x7f; };

  std::string_view rest = text;
  if (rest.starts_with("docker://")) rest.remove_prefix(9);
  ImageReference reference;

  std::optional<std::string_view> digest;
  if (const std::size_t at = rest.rfind('@');
      at != std::string_view::npos && looks_like_digest(rest.substr(at + 1))) {
    digest = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    const std::string_view user = rest.substr(0, at);
    if (user.find(':') != std::string_view::npos && user.find('/') == std::string_view::npos) {
      return Error(ErrorKind::invalid, "image: an image name must not contain a password")
          .hint("use USER@REGISTRY/NAME and store the password in a credentials file");
    }
    const auto ok = [](char c) {
      return is_alnum(c) || c == '.' || c == '_' || c == '-' || c == '$' || c == '+';
    };
    if (user.empty() || !std::all_of(user.begin(), user.end(), ok)) {
      return Error(ErrorKind::invalid,
                   "image: after '@', expected a digest (sha256:...), or an image after USER@");
    }
    reference.user = user;
    rest = rest.substr(at + 1);
  }
  if (!std::all_of(text.begin(), text.end(), printing)) {
    return bad_reference(text,
                         "spaces, control characters and letters other than a-z are not allowed");
  }

  // The registry ends at '#', or at the first '/' if what stands before it can only be a registry.
  std::string_view registry = default_registry;
  if (const std::size_t hash = rest.find('#'); hash != std::string_view::npos) {
    registry = rest.substr(0, hash);
    rest = rest.substr(hash + 1);
  } else if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (names_registry(rest.substr(0, slash))) {
      registry = rest.substr(0, slash);
      rest = rest.substr(slash + 1);
    }
  }
  reference.registry = SPC_TRY(checked_registry(text, registry));

  if (const std::size_t colon = rest.rfind(':'); colon != std::string_view::npos) {
    SPC_TRY(check_tag(text, rest.substr(colon + 1)));
    reference.tag = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (rest.empty()) return bad_reference(text, "the repository's name is missing");
  if (rest.size() > kMaxRepository)
    return bad_reference(text, "a repository's name has at most 255 characters");
  for (std::string_view name = rest;;) {
    const std::size_t slash = name.find('/');
    SPC_TRY(check_component(text, name.substr(0, slash)));
    if (slash == std::string_view::npos) break;
    name.remove_prefix(slash + 1);
  }
  reference.repository = rest;
  if (reference.registry == "docker.io" && rest.find('/') == std::string_view::npos) {
    reference.repository = "library/" + reference.repository;
    if (reference.repository.size() > kMaxRepository)
      return bad_reference(text, "a repository's name has at most 255 characters");
  }

  if (digest) {
    auto parsed = Digest::parse(*digest);
    if (!parsed) return std::move(parsed).error().during("image " + in_quotes(text));
    reference.digest = *parsed;
    reference.tag_ignored = !reference.tag.empty();
    reference.tag.clear();
  } else if (reference.tag.empty()) {
    reference.tag = "latest";
  }
  return reference;
}

std::string ImageReference::canonical() const {
  // A registry that only '#' made one needs it again.
  const char* separator = names_registry(registry) ? "/" : "#";
  return registry + separator + repository + (digest ? "@" + digest->str() : ":" + tag);
}

std::string ImageReference::api_host() const {
  return registry == "docker.io" ? "registry-1.docker.io" : registry;
}

std::optional<std::string> ImageReference::ref_file_name() const {
  std::string name;
  for (const char c : canonical()) {
    if (c == '/') {
      name += "%2F";
    } else {
      name += c;
    }
  }
  if (name.size() > 255) return std::nullopt;
  return name;
}

}  // namespace spc
