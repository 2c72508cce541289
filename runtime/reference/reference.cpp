#include "reference/reference.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <system_error>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "reference/location.hpp"

namespace spc {

// --- reference ---

namespace {

constexpr std::size_t kMaxReference = 4096;
// characters; accepted by all known registries (distribution spec, "name")
constexpr std::size_t kMaxRepository = 255;
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

/// Returns an error with the text up to the query that a URL would have. `advice`: the hint.
Error bad_reference(std::string_view text, const std::string& why,
                    std::string advice = "an image is REGISTRY/NAME:TAG") {
  return Error(ErrorKind::invalid,
               formatted("image {}: {}", in_quotes(text.substr(0, text.find('?'))), why), 0,
               std::move(advice));
}

/// Checks one component: [a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*
Result<void> check_component(std::string_view whole, std::string_view component) {
  if (component.empty())
    return bad_reference(whole,
                         "the repository has an empty component (\"//\", or \"/\" at an end)");
  if (std::any_of(component.begin(), component.end(), is_upper)) {
    return bad_reference(whole, "repository names have no upper-case letters",
                         "write " + in_quotes(lower(component)));
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

/// Returns whether the text after an '@' was meant as a digest.
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

namespace {

/// Returns USER of "USER@NAME" and removes it from `rest`; empty if there is no '@'.
Result<std::string_view> take_user(std::string_view& rest) {
  const std::size_t at = rest.find('@');
  if (at == std::string_view::npos) return std::string_view();
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
                 "image: after '@', expected a digest (sha256:...), or an image after USER@", 0,
                 "a tag follows a colon: NAME:TAG");
  }
  rest.remove_prefix(at + 1);
  return user;
}

Result<Digest> digest_of(std::string_view whole, std::string_view digest) {
  auto parsed = Digest::parse(digest);
  if (parsed) return parsed;
  return std::move(parsed)
      .error()
      .hint("scontainer inspect prints an image's digest")
      .during("image " + in_quotes(whole));
}

}  // namespace

Result<ImageReference> ImageReference::parse(std::string_view text,
                                             std::string_view default_registry) {
  if (text.empty()) return Error(ErrorKind::invalid, "the image's name is empty");
  if (text.size() > kMaxReference)
    return bad_reference(text, "the name is longer than 4096 characters");
  const auto printing = [](char c) { return c > 0x20 && c < 0x7f; };

  std::string_view rest = text;
  if (rest.starts_with("docker://")) rest.remove_prefix(9);
  ImageReference reference;

  // Remove the digest and the user from the ends of the text.
  std::optional<std::string_view> digest;
  if (const std::size_t at = rest.rfind('@');
      at != std::string_view::npos && looks_like_digest(rest.substr(at + 1))) {
    digest = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  reference.user = SPC_TRY(take_user(rest));
  if (!std::all_of(text.begin(), text.end(), printing)) {
    return bad_reference(text,
                         "spaces, control characters and letters other than a-z are not allowed");
  }

  // The registry ends at '#', or at the first '/' if the part before it can only be a registry.
  std::string_view registry = default_registry;
  if (const std::size_t hash = rest.find('#'); hash != std::string_view::npos) {
    registry = rest.substr(0, hash);
    rest = rest.substr(hash + 1);
    if (rest.starts_with('/') || registry.ends_with('/')) {
      while (rest.starts_with('/')) rest.remove_prefix(1);
      while (registry.ends_with('/')) registry.remove_suffix(1);
      return bad_reference(
          text, "the registry ends at #, or at the first /, not at both",
          formatted("write {}{}{}", registry, names_registry(registry) ? "/" : "#", rest));
    }
  } else if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (names_registry(rest.substr(0, slash))) {
      registry = rest.substr(0, slash);
      rest = rest.substr(slash + 1);
    }
  }
  reference.registry = SPC_TRY(checked_registry(text, registry));

  // The text that is left is the repository and, after the last colon, the tag.
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

  // With a digest, the tag has no effect.
  if (digest) {
    reference.digest = SPC_TRY(digest_of(text, *digest));
    reference.tag_ignored = !reference.tag.empty();
    reference.tag.clear();
  } else if (reference.tag.empty()) {
    reference.tag = "latest";
  }
  return reference;
}

std::string ImageReference::canonical() const {
  // A name that is a registry only because of '#' needs it again.
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

// --- hints for failed pulls ---

namespace {

/// Returns whether the name is more likely a registry than an image: `nvcr.io`, `registry:5000`.
bool looks_like_registry(std::string_view image) {
  const std::string_view name = image.substr(0, image.find(':'));
  if (name.find('.') != std::string_view::npos) return true;
  if (name.size() == image.size()) return false;
  const std::string_view tag = image.substr(name.size() + 1);
  return tag.size() >= 3 && tag.size() <= 5 &&
         std::all_of(tag.begin(), tag.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool has_registry(std::string_view image) {
  const std::string_view first = image.substr(0, image.find('/'));
  return image.find('#') != std::string_view::npos || image.find('@') < image.find('/') ||
         (first.size() < image.size() &&
          (first == "localhost" || first.find_first_of(".:") != std::string_view::npos));
}

}  // namespace

Error advised(Error error, std::string_view image, std::string_view default_registry) {
  if (image.starts_with("docker://")) image.remove_prefix(9);
  const bool is_about_name = error.kind() == ErrorKind::not_found ||
                             error.kind() == ErrorKind::refused ||
                             error.kind() == ErrorKind::unavailable;
  const auto location = ImageLocation::parse(image, default_registry);
  if (!is_about_name || !error.is_of_pull() || !location ||
      location->kind != ImageLocation::Kind::registry || has_registry(image)) {
    return error;
  }
  std::string advice = error.advice() + (error.advice().empty() ? "" : "; ");
  advice += formatted(
      "without a registry in its name an image is of {}, the default: REGISTRY/NAME names another",
      location->name.registry);
  if (looks_like_registry(image))
    advice += formatted("; in #SBATCH lines # begins a comment: write {}/NAME, not {}#NAME", image,
                        image);
  return Error(error.kind(), error.what()).hint(advice);
}

// --- named image ---

namespace {

constexpr std::size_t kMostIndexes = 16;
constexpr std::size_t kMostText = 4096;

/// Returns the FNV-1a hash of `text`, continued from `hash`.
std::uint64_t hash_of(std::string_view text, std::uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

bool NamedImage::is(const Digest& digest) const {
  return digest == manifest || std::ranges::find(indexes, digest) != indexes.end();
}

std::string NamedImage::str() const {
  std::string text = manifest.str() + " " + std::to_string(asked_at) + " " + name;
  for (const Digest& index : indexes) text += " " + index.str();
  return text + "\n";
}

std::optional<NamedImage> NamedImage::parse(std::string_view text) {
  if (!text.ends_with('\n')) return std::nullopt;
  text.remove_suffix(1);
  const auto words = split(text, ' ');
  const auto manifest = Digest::parse(words[0]);
  if (!manifest || words.size() < 3) return std::nullopt;
  const auto asked_at = parse_number<std::int64_t>(words[1]);
  if (!asked_at) return std::nullopt;
  NamedImage image{.name = std::string(words[2]), .manifest = *manifest, .asked_at = *asked_at};
  for (std::size_t i = 3; i < words.size(); ++i) {
    const auto index = Digest::parse(words[i]);
    if (!index) return std::nullopt;
    image.indexes.push_back(*index);
  }
  return image;
}

void NamedImage::add_indexes(const std::vector<Digest>& more) {
  for (const Digest& index : more) {
    if (indexes.size() < kMostIndexes && std::ranges::find(indexes, index) == indexes.end())
      indexes.push_back(index);
  }
}

Digest name_key(std::string_view name) {
  Digest key;
  const std::uint64_t halves[] = {hash_of(name, 0xcbf29ce484222325),
                                  hash_of(name, 0x84222325cbf29ce4)};
  for (std::size_t i = 0; i < 16; ++i)
    key.bytes[i] = static_cast<std::uint8_t>(halves[i / 8] >> (8 * (i % 8)));
  return key;
}

std::optional<NamedImage> read_named_image(int directory, const std::string& file,
                                           std::optional<uid_t> owner) {
  const UniqueFd opened(
      ::openat(directory, file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return std::nullopt;
  if (owner && status.st_uid != *owner) return std::nullopt;
  const auto text = read_file(opened.get(), kMostText);
  auto image = text ? NamedImage::parse(*text) : std::nullopt;
  if (image) image->written = status.st_mtim.tv_sec;
  return image;
}

}  // namespace spc
