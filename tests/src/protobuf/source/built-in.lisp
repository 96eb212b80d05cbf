;;;; The files that every image has are those of proto/.

(in-package #:clgrpc.tests.protobuf)

(defun built-in-source (name)
  (protobuf::read-source (asdf:system-relative-pathname
                          "clgrpc" (concatenate 'string "proto/" name))))

(test built-in-files-are-as-their-sources-say
  (let ((defined 0) (embedded 0))
    (maphash (lambda (name kind)
               (cond ((stringp kind)
                      (incf embedded)
                      (is (string= (built-in-source name) kind) "~A" name))
                     (t (incf defined)
                        (is (string= (protobuf::text-fingerprint (built-in-source name))
                                     (protobuf::file-descriptor-fingerprint
                                      (find-file-descriptor name)))
                            "~A" name))))
             protobuf::*built-ins*)
    (is (= 15 defined))
    (is (= 3 embedded)))
  (is (null (protobuf::built-in "google/protobuf/unheard_of.proto"))))
