spc_unit_test(hooks_json_test SOURCES hooks_json_test.cpp LIBS spc_hooks spc_base)
spc_unit_test(hooks_program_test SOURCES hooks_program_test.cpp LIBS spc_hooks spc_base)
target_compile_definitions(hooks_program_test PRIVATE SPC_BUILTIN_HOOK="$<TARGET_FILE:builtin-hook>")
add_dependencies(hooks_program_test builtin-hook)
