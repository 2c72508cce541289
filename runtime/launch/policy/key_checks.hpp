#pragma once

#include <string>

/// What texts in config.toml may be: the checks of KeyRow that more than one key has.
namespace spc::key {

/// Printable, and at least one character.
bool is_line(const std::string& text);
bool is_absolute(const std::string& text);
/// Empty, which means none, or an absolute path.
bool is_absolute_or_none(const std::string& text);
/// off, default, or an absolute path.
bool is_seccomp(const std::string& text);
/// Empty, which means none, or printable without blanks: what the kernel knows a security module's
/// profile by.
bool is_label_or_none(const std::string& text);
/// An ImageRule.
bool is_image_rule(const std::string& text);
/// SRC[:DST[:FLAGS]] with an absolute path. The form alone: the flags are known to
/// launch/request/mount_spec, where mounts are made. One mount a text, and no relative source,
/// which would lie below each job's own directory.
bool is_mount(const std::string& text);
/// NAME=VALUE
bool is_assignment(const std::string& text);
/// The name of a variable, or a pattern with * and ?.
bool is_name_or_pattern(const std::string& text);
/// The name of an adapter, its PCI address, or a pattern of fnmatch(3).
bool is_adapter(const std::string& text);
/// The name of a hook: no path.
bool is_hook(const std::string& text);
/// 1% to 100%, or a number of bytes with K, M, G or T behind it: tmpfs takes it as it is.
bool is_upper_size(const std::string& text);
/// The same, or empty, which means none.
bool is_upper_size_or_none(const std::string& text);

inline constexpr char kUpperSizeRule[] =
    "expected 1% to 100%, or a number of bytes with K, M, G or T behind it";
inline constexpr char kLibraryRule[] = "expected the absolute path of a library";
inline constexpr char kMountRule[] = "expected SRC[:DST[:FLAGS]] with an absolute path of the node";

}  // namespace spc::key
