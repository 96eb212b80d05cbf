;;;; Declarations as `describe` writes them, of descriptors as strange, and as many, as a server's
;;;; reflection may tell.

(in-package #:clgrpc.tests.tools)

(defun many (count function)
  (loop for i from 1 to count collect (funcall function i)))

(defun int-field (name number &rest more)
  (apply #'google.protobuf:make-field-descriptor-proto
         (append more (list :name name :number number :label :label-optional :type :type-int32))))

(defun many-oneofs (count)
  "COUNT oneofs of two fields each, which do not stand together."
  (google.protobuf:make-descriptor-proto
   :name "M"
   :field (many (* 2 count)
                (lambda (i) (int-field (format nil "f~D" i) i :oneof-index (mod i count))))
   :oneof-decl (many count (lambda (i)
                             (google.protobuf:make-oneof-descriptor-proto
                              :name (format nil "o~D" i))))))

(defun many-maps (count)
  (google.protobuf:make-descriptor-proto
   :name "M"
   :field (many count (lambda (i)
                        (int-field (format nil "f~D" i) i
                                   :label :label-repeated :type :type-message
                                   :type-name (format nil ".p.M.F~DEntry" i))))
   :nested-type (many count (lambda (i)
                              (google.protobuf:make-descriptor-proto
                               :name (format nil "F~DEntry" i)
                               :field (list (int-field "key" 1) (int-field "value" 2))
                               :options (google.protobuf:make-message-options :map-entry t))))))

(defun index-of-message (message)
  (tools::pool-index
   (protobuf:make-type-pool
    (protobuf:serialize
     (google.protobuf:make-file-descriptor-set
      :file (list (google.protobuf:make-file-descriptor-proto
                   :name "many.proto" :package "p" :syntax "proto3"
                   :message-type (list message))))))))

(defun declaration-text (index full-name)
  (with-output-to-string (*standard-output*)
    (tools::write-declaration (tools::need-symbol index full-name) 0
                              (tools::make-scope (tools::owner-of index full-name)))))

(test declarations-of-oneofs-and-maps
  (let ((index (index-of-message (many-oneofs 2))))
    (is (string= (lines "message M {"
                        "  oneof o2 {" "    int32 f1 = 1;" "    int32 f3 = 3;" "  }"
                        "  oneof o1 {" "    int32 f2 = 2;" "    int32 f4 = 4;" "  }"
                        "}")
                 (declaration-text index "p.M")))
    (is (string= (lines "oneof o1 {" "  int32 f2 = 2;" "  int32 f4 = 4;" "}")
                 (declaration-text index "p.M.o1"))))
  (let ((index (index-of-message (many-maps 2))))
    (is (string= (lines "message M {" "  map<int32, int32> f1 = 1;" "  map<int32, int32> f2 = 2;"
                        "}")
                 (declaration-text index "p.M")))
    (is (string= (lines "map<int32, int32> f2 = 2;") (declaration-text index "p.M.f2")))))

(defun declaration-seconds (index)
  "The seconds of processor time that the declaration of p.M takes, the least of some."
  (loop repeat 3
        minimize (let ((start (get-internal-run-time)))
                   (declaration-text index "p.M")
                   (/ (- (get-internal-run-time) start) internal-time-units-per-second 1d0))))

(test declarations-take-work-as-their-length-does
  "Eight times as many may take no more than some twenty times as long, a square sixty-four."
  (loop for (what make) in (list (list "oneofs" #'many-oneofs) (list "maps" #'many-maps))
        for few = (declaration-seconds (index-of-message (funcall make 500)))
        for many = (declaration-seconds (index-of-message (funcall make 4000)))
        do (is (< many (* 20 (max few 0.01d0)))
               "~A: ~,3F s for 500, ~,3F s for 4000" what few many)))
