// A target needs a source; this one has precompiled.h, which the build gives to every source.
