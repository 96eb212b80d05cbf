;;;; Write the manual: sbcl --load scripts/lisp/manual.lisp --end-toplevel-options [FOLDER]

(load (merge-pathnames "../load.lisp" *load-truename*))

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools/manual")

(let* ((folder (or (second sb-ext:*posix-argv*)
                   (uiop:native-namestring (merge-pathnames "bin/manual/" *root*))))
       (count (uiop:symbol-call '#:clgrpc.manual '#:write-manual
                                (uiop:parse-native-namestring folder :ensure-directory t))))
  (note "~D entries; the first page is index.html in ~A" count folder))
