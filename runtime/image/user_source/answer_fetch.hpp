#pragma once

namespace spc::user_source {

/// `user-source fetch` (protocol/user_source.hpp); returns its exit status.
int answer_fetch();

}  // namespace spc::user_source
