;;;; Descriptor sets: read back as they were, found by name and number, made into code.

(in-package #:clgrpc.tests.protobuf)

(defun edition-set (name)
  "The files that result from compiling NAME of editions/, imports first."
  (let ((directories (list (merge-pathnames "editions/" *here*)
                           (asdf:system-relative-pathname "clgrpc" "proto/"))))
    (protobuf::load-protos name (protobuf::read-source (protobuf::find-proto name directories))
                           directories)))

(test sets-read-back-as-they-were
  (dolist (path (directory (merge-pathnames "editions/*.proto" *here*)))
    (let* ((name (file-namestring path))
           (files (edition-set name))
           (again (protobuf::link-set (protobuf::set-files (descriptor-set-octets files)))))
      (is (equalp (file-descriptor-octets (first (last files)))
                  (file-descriptor-octets (find name again :key #'descriptor-name
                                                           :test #'string=)))
          "~A" name))))

(test facts-of-a-read-file-are-those-of-its-source
  (let* ((files (edition-set "delimited.proto"))
         (again (protobuf::link-set (protobuf::set-files (descriptor-set-octets files)))))
    (flet ((facts (file)
             (let ((facts '()))
               (protobuf::map-names
                (fn (descriptor _owner)
                  (when (typep descriptor 'field-descriptor)
                    (push (list (descriptor-full-name descriptor)
                                (field-descriptor-presence descriptor)
                                (protobuf::field-descriptor-delimited-p descriptor)
                                (field-descriptor-packed-p descriptor)
                                (field-descriptor-oneof descriptor)
                                (protobuf::field-descriptor-map-p descriptor))
                          facts)))
                file)
               facts)))
      (is (equal (facts (first files)) (facts (first again)))))))

(test a-set-in-any-order
  (let* ((files (edition-set "top.proto"))
         (octets (descriptor-set-octets (reverse files))))
    (is (equal (sort (mapcar #'descriptor-name files) #'string<)
               (sort (mapcar #'descriptor-name (protobuf::link-set (protobuf::set-files octets)))
                     #'string<)))))

(test loaded-sets-are-found
  (load-descriptor-set (descriptor-set-octets (edition-set "extensions.proto")))
  (flet ((file-of (name) (let ((file (file-of-symbol name))) (and file (descriptor-name file)))))
    (dolist (name '("Base" "Base.own" "Base.Nested" "Base.nested" "text" "Mode" "ON"))
      (is (equal "extensions.proto"
                 (file-of (format nil "clgrpc.editions.extensions.~A" name)))
          "~A" name)))
  (is (null (file-of-symbol "clgrpc.editions.extensions.Nothing")))
  (is (equal "clgrpc.editions.extensions.text"
             (descriptor-full-name
              (find-extension-descriptor "clgrpc.editions.extensions.Base" 103))))
  (is (equal '(100 101 102 103 300 1000 536870911)
             (mapcar #'field-descriptor-number
                     (extension-descriptors "clgrpc.editions.extensions.Base"))))
  (is (typep (find-file-descriptor "extensions.proto") 'file-descriptor)))

(test a-set-keeps-options-as-written
  (let ((file (find "options_used.proto"
                    (load-descriptor-set (descriptor-set-octets
                                          (edition-set "options_used.proto")))
                    :key #'descriptor-name :test #'string=)))
    (is (equalp (string-octets "x.y") (find-option file "java_package")))
    (is (equal '(:identifier "LEVEL_HIGH")
               (find-option (first (file-descriptor-messages file))
                            "(clgrpc.editions.options.message_level)")))))

(test code-from-a-set
  (let ((path (merge-pathnames (format nil "clgrpc-~36R.binpb"
                                       (random (expt 36 8) (make-random-state t)))
                               (uiop:temporary-directory))))
    (unwind-protect
         (progn
           (with-open-file (out path :direction :output :element-type 'octet)
             (write-sequence (descriptor-set-octets (edition-set "defaults.proto")) out))
           (eval `(define-descriptor-set ,(sb-ext:native-namestring path)))
           (let ((message (make-message "clgrpc.editions.defaults.Defaults")))
             (is (= 0.1d0 (field-value message "a")))
             (is (= 18446744073709551615 (field-value message "ad")))
             (is (eq :green (field-value message "am")))
             (setf (field-value message "aa") 7)
             (is (message= message (round-trip message)))))
      (uiop:delete-file-if-exists path))))

(test octets-that-are-no-set
  (signals protobuf-error (load-descriptor-set (unhex "0a05")))
  (signals protobuf-error (load-descriptor-set (unhex "0a080a0161720363")))
  (signals proto-syntax-error
    (load-descriptor-set (descriptor-set-octets (last (edition-set "feature_set_used.proto"))))))

(test an-extension-of-nothing
  (signals proto-syntax-error           ; a file "a" with an extension "e", number 1, int32
    (load-descriptor-set (unhex "0a0e 0a0161 3a09 0a0165 1801 2001 2805"))))

(test reading-survives-any-octets
  (with-seed ()
    (let ((octets (descriptor-set-octets (edition-set "options.proto"))))
      (dotimes (i 500)
        (let ((mutant (copy-seq octets)))
          (dotimes (j (1+ (random 4)))
            (setf (aref mutant (random (length mutant))) (random 256)))
          (handler-case (protobuf::link-set (protobuf::set-files mutant))
            ((or protobuf-error proto-syntax-error) () nil))))
      (pass))))

(test a-field-belongs-somewhere
  "An extension without an extendee is an error; a missing oneof counts as none."
  (flet ((read-set (&rest arguments)
           (protobuf::link-read-file
            (protobuf::read-file-descriptor
             (serialize (apply #'google.protobuf:make-file-descriptor-proto :name "odd.proto"
                               arguments)))
            #'find-file-descriptor))
         (field (&rest arguments)
           (apply #'google.protobuf:make-field-descriptor-proto
                  :name "f" :number 1 :type :type-int32 :label :label-optional arguments)))
    (signals proto-syntax-error (read-set :extension (list (field))))
    (let* ((message (google.protobuf:make-descriptor-proto
                     :name "M" :field (list (field :oneof-index 2147483647))))
           (file (read-set :message-type (list message))))
      (is (null (field-descriptor-oneof
                 (first (message-descriptor-fields
                         (first (file-descriptor-messages file))))))))))

(defun set-with-field (&rest arguments)
  "A descriptor set of a proto2 file with an enum p.E and a message p.M, whose field 1 is made with
ARGUMENTS."
  (let ((field (apply #'google.protobuf:make-field-descriptor-proto
                      :name "f" :number 1 :label :label-optional arguments))
        (zero (google.protobuf:make-enum-value-descriptor-proto :name "ZERO" :number 0)))
    (serialize
     (google.protobuf:make-file-descriptor-set
      :file (list (google.protobuf:make-file-descriptor-proto
                   :name "p.proto" :package "p"
                   :message-type (list (google.protobuf:make-descriptor-proto
                                        :name "M" :field (list field)))
                   :enum-type (list (google.protobuf:make-enum-descriptor-proto
                                     :name "E" :value (list zero)))))))))

(test a-scalar-field-names-no-type
  (dolist (name '(".p.E" ".p.M" "M.E"))
    (signals proto-syntax-error (make-type-pool (set-with-field :type :type-string
                                                                :type-name name)))))

(test defaults-of-a-set
  (flet ((default (type text)
           (let ((pool (make-type-pool (set-with-field :type type :default-value text))))
             (field-value (make-message (find-pool-type pool "p.M")) 1))))
    (is (eql -0d0 (default :type-double "-0")))
    (is (eql -0f0 (default :type-float "-0")))
    (is (eql -1.5d0 (default :type-double "-1.5")))
    (is (eql (- (expt 2 63)) (default :type-int64 "-9223372036854775808")))
    (is (eql (1- (expt 2 64)) (default :type-uint64 "18446744073709551615")))
    (loop for (type text) in '((:type-int32 "2147483648") (:type-sint32 "-2147483649")
                               (:type-uint32 "-1") (:type-fixed64 "18446744073709551616")
                               (:type-int64 "9223372036854775808") (:type-int32 "1.5")
                               (:type-double "one") (:type-int32 ""))
          do (signals protobuf-error (default type text)))))

(test long-options-cost-what-they-are-long
  "Memory is proportional to the number of an option's values, not to its square."
  (let* ((record (protobuf::make-record (find-descriptor "google.protobuf.FieldOptions")))
         (field (protobuf::field-named (protobuf::record-message record) "targets"))
         (before (sb-ext:get-bytes-consed)))
    (dotimes (i 20000) (protobuf::add-entry record field i))
    (is (< (- (sb-ext:get-bytes-consed) before) (expt 2 24)))
    (is (equal '(0 1 2) (subseq (protobuf::record-values record "targets") 0 3)))
    (is (= 20000 (length (protobuf::record-values record "targets"))))))
