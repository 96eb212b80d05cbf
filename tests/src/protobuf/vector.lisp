;;;; The results of protoc 33.2, which tests/conformance/protoc.py keeps in tests/vectors/protobuf.

(in-package #:clgrpc.tests.protobuf)

(defparameter *here* (asdf:system-relative-pathname "clgrpc" "tests/src/protobuf/"))

(defun vector-lines (name)
  (uiop:read-file-lines (asdf:system-relative-pathname
                         "clgrpc" (format nil "tests/vectors/protobuf/~A" name))))

(defun editions-vectors ()
  "A list of (file form octets), form being \"runtime\" or \"source\"."
  (let ((vectors '()))
    (dolist (line (vector-lines "editions.txt"))
      (let ((words (uiop:split-string line)))
        (cond ((char= #\; (char line 0)))
              ((rest words) (push (list (first words) (second words) "") vectors))
              (t (setf (third (first vectors))
                       (concatenate 'string (third (first vectors)) line))))))
    (loop for (file form text) in (nreverse vectors)
          collect (list file form (decode-base64 text)))))

(defun refused-vectors ()
  "A list of (name line text); line is a number, nil, or 0 for a valid file."
  (let ((vectors '()))
    (dolist (line (vector-lines "refused.txt"))
      (let ((words (uiop:split-string line)))
        (cond ((string= "===" (first words))
               (push (list (second words) (parse-integer (third words) :junk-allowed t) "")
                     vectors))
              (vectors
               (setf (third (first vectors))
                     (format nil "~A~A~%" (third (first vectors)) line))))))
    (nreverse vectors)))

(defun compile-file-named (name &rest directories)
  "The linked descriptor of the .proto file NAME in one of DIRECTORIES."
  (first (last (protobuf::load-protos name
                                      (protobuf::read-source
                                       (protobuf::find-proto name directories))
                                      directories))))

(defun compile-edition-file (name)
  (compile-file-named name
                      (merge-pathnames "editions/" *here*)
                      (asdf:system-relative-pathname "clgrpc" "proto/")))
