;;;; The work for descriptors is linear in their octets, whichever part is large: each shape of a
;;;; file is linked with some elements, and with eight times as many, which may take some twenty
;;;; times as long; quadratic work would take sixty-four times.

(in-package #:clgrpc.tests.protobuf)

(defun set-of (files)
  (serialize (google.protobuf:make-file-descriptor-set :file files)))

(defun many (count function)
  (loop for i from 1 to count collect (funcall function i)))

(defun named (control i)
  (format nil control i))

(defun message-field (i &rest arguments)
  (apply #'google.protobuf:make-field-descriptor-proto
         (append arguments (list :name (named "f~D" i) :number i :label :label-optional
                                 :type :type-int32))))

(defun message-file (&rest arguments)
  (google.protobuf:make-file-descriptor-proto
   :name "many.proto" :package "p" :syntax "proto2"
   :message-type (list (apply #'google.protobuf:make-descriptor-proto :name "M" arguments))))

(defun extension-range (first end)
  (google.protobuf:make-descriptor-proto.extension-range :start first :end end))

(defun reserved-range (first end)
  (google.protobuf:make-descriptor-proto.reserved-range :start first :end end))

(defun enum-value (i &optional (number i))
  (google.protobuf:make-enum-value-descriptor-proto :name (named "V~D" i) :number number))

(defun chained-files (count public)
  (many count (lambda (i)
                (google.protobuf:make-file-descriptor-proto
                 :name (named "c~D.proto" i) :package "p" :syntax "proto3"
                 :dependency (if (= i 1) '() (list (named "c~D.proto" (1- i))))
                 :public-dependency (if (and public (> i 1)) '(0) '())
                 :message-type (list (google.protobuf:make-descriptor-proto
                                      :name (named "M~D" i)))))))

(defun nested-locations (count)
  "Source info for COUNT fields of a message in a message."
  (google.protobuf:make-source-code-info
   :location (many count (lambda (i)
                           (google.protobuf:make-source-code-info.location
                            :path (list 4 0 3 0 2 (1- i)) :span (list i 1 2))))))

(defparameter *shapes*
  `(("fields" . ,(lambda (n) (list (message-file :field (many n #'message-field)))))
    ("fields whose Lisp names are alike"
     . ,(lambda (n)
          (list (message-file
                 :field (many n (lambda (i)
                                  (message-field i :name (named "f~:[_~;~]~:*~D" i))))))))
    ("oneofs"
     . ,(lambda (n)
          (list (message-file
                 :field (many n (lambda (i) (message-field i :oneof-index (1- i))))
                 :oneof-decl (many n (lambda (i)
                                       (google.protobuf:make-oneof-descriptor-proto
                                        :name (named "o~D" i))))))))
    ("fields of a oneof"
     . ,(lambda (n)
          (list (message-file
                 :field (many n (lambda (i) (message-field i :oneof-index 0)))
                 :oneof-decl (list (google.protobuf:make-oneof-descriptor-proto :name "o"))))))
    ("optionals"
     . ,(lambda (n)
          (let ((file (message-file
                       :field (many n (lambda (i)
                                        (message-field i :oneof-index (1- i) :proto3-optional t)))
                       :oneof-decl (many n (lambda (i)
                                             (google.protobuf:make-oneof-descriptor-proto
                                              :name (named "_f~D" i)))))))
            (setf (google.protobuf:file-descriptor-proto-syntax file) "proto3")
            (list file))))
    ("extension ranges and extensions"
     . ,(lambda (n)
          (list (message-file
                 :extension-range (many n (lambda (i) (extension-range (* 2 i) (1+ (* 2 i)))))
                 :extension (many n (lambda (i)
                                      (message-field i :number (* 2 i) :extendee ".p.M")))))))
    ("reserved ranges and names"
     . ,(lambda (n)
          (list (message-file
                 :field (many n (lambda (i) (message-field i :number (1+ (* 2 i)))))
                 :reserved-range (many n (lambda (i) (reserved-range (* 2 i) (1+ (* 2 i)))))
                 :reserved-name (many n (lambda (i) (named "r~D" i)))))))
    ("ranges that overlap"
     . ,(lambda (n)
          (list (message-file :reserved-range (many n (lambda (i) (reserved-range i (+ n i))))))))
    ("nested messages"
     . ,(lambda (n)
          (list (message-file
                 :nested-type (many n (lambda (i)
                                        (google.protobuf:make-descriptor-proto
                                         :name (named "N~D" i))))))))
    ("map fields"
     . ,(lambda (n)
          (list (message-file
                 :field (many n (lambda (i)
                                  (message-field i :label :label-repeated :type :type-message
                                                   :type-name (named ".p.M.F~DEntry" i))))
                 :nested-type
                 (many n (lambda (i)
                           (google.protobuf:make-descriptor-proto
                            :name (named "F~DEntry" i)
                            :field (list (message-field 1 :name "key")
                                         (message-field 2 :name "value"))
                            :options (google.protobuf:make-message-options :map-entry t))))))))
    ("map fields, one of them wrong"
     . ,(lambda (n)
          (list (message-file
                 :field (many n #'message-field)
                 :nested-type
                 (many n (lambda (i)
                           (google.protobuf:make-descriptor-proto
                            :name (named "f~D" i)
                            :options (google.protobuf:make-message-options :map-entry t))))))))
    ("enum values and defaults"
     . ,(lambda (n)
          (list (message-file
                 :enum-type (list (google.protobuf:make-enum-descriptor-proto
                                   :name "E" :value (many n (lambda (i) (enum-value i)))))
                 :field (many n (lambda (i)
                                  (message-field i :type :type-enum :type-name ".p.M.E"
                                                   :default-value (named "V~D" i))))))))
    ("enum aliases"
     . ,(lambda (n)
          (list (message-file
                 :enum-type (list (google.protobuf:make-enum-descriptor-proto
                                   :name "E" :value (many n (lambda (i) (enum-value i 1)))
                                   :options (google.protobuf:make-enum-options
                                             :allow-alias t)))))))
    ("methods"
     . ,(lambda (n)
          (let ((file (message-file)))
            (setf (google.protobuf:file-descriptor-proto-service file)
                  (list (google.protobuf:make-service-descriptor-proto
                         :name "S"
                         :method (many n (lambda (i)
                                           (google.protobuf:make-method-descriptor-proto
                                            :name (named "m~D" i) :input-type ".p.M"
                                            :output-type ".p.M"))))))
            (list file))))
    ("source info of nested fields"
     . ,(lambda (n)
          (let ((file (message-file :nested-type
                                    (list (google.protobuf:make-descriptor-proto
                                           :name "N" :field (many n #'message-field))))))
            (setf (google.protobuf:file-descriptor-proto-source-code-info file)
                  (nested-locations n))
            (list file))))
    ("features of a file"
     . ,(lambda (n)
          (let ((file (message-file :field (many n #'message-field))))
            (setf (google.protobuf:file-descriptor-proto-syntax file) "editions"
                  (google.protobuf:file-descriptor-proto-edition file) :edition-2023
                  (google.protobuf:file-descriptor-proto-options file)
                  (parse-message "google.protobuf.FileOptions"
                                 ;; options.features, again and again
                                 (apply #'concatenate 'octets
                                        (many n (constantly (unhex "92030208 01"))))))
            (list file))))
    ("files in a chain" . ,(lambda (n) (chained-files (floor n 4) nil)))
    ("files that import one"
     . ,(lambda (n)
          (cons (first (chained-files 1 nil))
                (many (floor n 4)
                      (lambda (i)
                        (google.protobuf:make-file-descriptor-proto
                         :name (named "d~D.proto" i) :dependency '("c1.proto")))))))
    ("imports of one file"
     . ,(lambda (n)
          (let ((files (many (floor n 4)
                             (lambda (i)
                               (google.protobuf:make-file-descriptor-proto
                                :name (named "d~D.proto" i) :package (named "p~D" i)))))
                (file (message-file :field (many n (lambda (i)
                                                     (message-field i :type :type-message
                                                                      :type-name "p.M"))))))
            (setf (google.protobuf:file-descriptor-proto-dependency file)
                  (mapcar #'google.protobuf:file-descriptor-proto-name files))
            (append files (list file))))))
  "What can be many, as an alist from words to functions of a number that make the files.")

(defun pool-seconds (octets)
  "The seconds of processor time for a pool of OCTETS, the least of several; OCTETS may be refused."
  (loop repeat 3
        minimize (let ((start (get-internal-run-time)))
                   (handler-case (make-type-pool octets)
                     ((or protobuf-error proto-syntax-error) () nil))
                   (/ (- (get-internal-run-time) start) internal-time-units-per-second 1d0))))

(test descriptors-take-work-as-their-octets-do
  (loop for (what . make) in *shapes*
        for few = (pool-seconds (set-of (funcall make 500)))
        for many = (pool-seconds (set-of (funcall make 4000)))
        do (is (< many (* 20 (max few 0.01d0)))
               "~A: ~,3F s for 500, ~,3F s for 4000" what few many)))

(test imports-need-no-stack
  "A chain of files, as long as a peer can make it, is linked, or refused as other octets are."
  (is (= 30000 (length (type-pool-files (make-type-pool (set-of (chained-files 30000 nil)))))))
  (is (= 30000 (length (type-pool-files
                        (make-type-pool (set-of (reverse (chained-files 30000 nil))))))))
  (signals protobuf-error (make-type-pool (set-of (chained-files 5000 t))))
  (let ((files (chained-files 30000 nil)))
    (setf (google.protobuf:file-descriptor-proto-dependency (first files)) '("c30000.proto"))
    (signals proto-syntax-error (make-type-pool (set-of files)))))

(defun nested-set (depth name)
  "A set of one file with messages NAME inside each other, DEPTH levels: more, if needed, than can
be serialized."
  (flet ((field (number octets)
           (let ((size (length octets)))
             (concatenate 'octets (octets-of (logior (ash number 3) 2)
                                             (logior 128 (ldb (byte 7 0) size))
                                             (logior 128 (ldb (byte 7 7) size))
                                             (ash size -14))
                          octets))))
    (let* ((name (field 1 (string-octets name))) (message name))
      (dotimes (i (1- depth)) (setf message (concatenate 'octets name (field 3 message))))
      (field 1 (concatenate 'octets (field 1 (string-octets "nested.proto")) (field 4 message))))))

(test names-and-nesting-are-bounded
  (is-true (make-type-pool (nested-set 90 "M")))
  (signals protobuf-error (make-type-pool (nested-set 10000 "M")))
  (signals protobuf-error (make-type-pool (nested-set 2 (make-string 400 :initial-element #\a)))))

(test nothing-is-interned-for-files-that-are-read
  (with-tree (directory `(("unseen_file.proto"
                           . "syntax = 'proto3'; package clgrpc.test.unseen.package;
message UnseenInFile { int32 unseen_in_field = 1; } service UnseenService { }")))
    (let* ((files (read-proto-files "unseen_file.proto" :directory directory))
           (pool (make-type-pool files)))
      (is-true (find-pool-type pool "clgrpc.test.unseen.package.UnseenInFile"))
      (is (null (find-package "CLGRPC.TEST.UNSEEN.PACKAGE")))
      (is (null (find-package "CLGRPC.TEST.UNSEEN.PACKAGE.UNSEEN-SERVICE")))
      (dolist (name '("UNSEEN-IN-FILE" "UNSEEN-IN-FIELD" "UNSEEN-SERVICE"))
        (is (null (find-all-symbols name)) "~A" name)))))

(test source-takes-work-as-it-is-long
  (flet ((seconds (text)
           (loop repeat 3
                 minimize (let ((start (get-internal-run-time)))
                            (protobuf::link-protos (protobuf::parse-proto text "long.proto")
                                                   text '())
                            (/ (- (get-internal-run-time) start)
                               internal-time-units-per-second 1d0))))
         (text (control count)
           (format nil "syntax = 'proto2'; import 'google/protobuf/descriptor.proto'; package p;
extend google.protobuf.MessageOptions { repeated int32 many = 50000; optional R r = 50001; }
message R { repeated int32 i = 1; optional int32 j = 2; }
message M { ~? }" control (list (loop for i from 1 to count collect i)))))
    (loop for (what control)
            in '(("strings" "optional string s = 1 [default = ~{'~D'~}];")
                 ("reserved" "~{reserved ~D; reserved 'a~:*~D';~}")
                 ("extensions" "~{extensions ~D;~}")
                 ("options" "~{option (many) = ~D;~}")
                 ("parts of an option" "option (r) = {~{ i: ~D~} };")
                 ("oneofs" "~{oneof o~D { int32 f~:*~D = ~:*~D; }~}")
                 ("maps" "~{map<int32, int32> m~D = ~:*~D;~}"))
          for few = (seconds (text control 1000))
          for many = (seconds (text control 8000))
          do (is (< many (* 20 (max few 0.02d0)))
                 "~A: ~,3F s for 1000, ~,3F s for 8000" what few many))))
