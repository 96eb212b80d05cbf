;;;; Save the greeter as an executable in the current directory:
;;;;   sbcl --dynamic-space-size 2GB --non-interactive --load build.lisp

(load (merge-pathnames "greeter.lisp" *load-truename*))

(sb-ext:save-lisp-and-die "greeter" :executable t :toplevel #'greeter:main
                                    :save-runtime-options t)
