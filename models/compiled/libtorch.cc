// A library without code that bears the name libtorch.so. Packages of AOTInductor need one; see
// compiled_model.cc.
