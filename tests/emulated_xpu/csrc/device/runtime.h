#pragma once

namespace xpu_emu {

void install_runtime();

} // namespace xpu_emu
