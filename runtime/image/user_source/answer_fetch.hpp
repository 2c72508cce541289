#pragma once

#include <span>

namespace spc::user_source {

/// `user-source fetch ...` (protocol/user_source.hpp), with the words behind `fetch`; its exit status.
int answer_fetch(std::span<char*> words);

}  // namespace spc::user_source
