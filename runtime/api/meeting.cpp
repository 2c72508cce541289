#include "meeting/meeting.hpp"

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "spank_container/runtime.h"

struct spc_meeting {
  spc::Meeting meeting;
  std::string variable;
};

static_assert(std::string_view(SPC_MEETING_VARIABLE) == spc::kMeetingVariable);

int spc_meeting_open(spc_meeting** meeting, const char** variable) {
  if (meeting == nullptr || variable == nullptr) return SPC_E_INVALID;
  *meeting = nullptr;
  try {
    auto made = std::make_unique<spc_meeting>();
    const auto address = made->meeting.open();
    if (!address) return SPC_E_SYSTEM;
    made->variable = address->variable();
    *variable = made->variable.c_str();
    *meeting = made.release();
    return SPC_OK;
  } catch (const std::exception&) {  // out of memory
    return SPC_E_NO_SPACE;
  }
}

void spc_meeting_start(spc_meeting* meeting, uint32_t nodes, const char* image, spc_log_fn log, void* arg) {
  if (meeting == nullptr) return;
  try {
    meeting->meeting.start(nodes, image != nullptr ? image : "", [log, arg](spc::Meeting::About about, const std::string& line) {
      if (log != nullptr) log(about == spc::Meeting::About::progress ? SPC_LOG_INFO : SPC_LOG_DEBUG, line.c_str(), arg);
    });
  } catch (const std::exception&) {
    // Out of memory: nobody is answered, and each node goes alone.
  }
}

void spc_meeting_free(spc_meeting* meeting) { delete meeting; }
