;;;; Coders that serve any layout, against the ones compiled for the same definitions.

(in-package #:clgrpc.tests.protobuf)

(defun define-small (name text)
  (eval `(define-proto ,name :source ,text :optimize-for :code-size)))

(defun source-of-all ()
  "The text of all.proto, in the package clgrpc.small."
  (let* ((text (uiop:read-file-string
                (asdf:system-relative-pathname "clgrpc" "tests/src/protobuf/all.proto")))
         (line "package clgrpc.test;") (at (search line text)))
    (concatenate 'string (subseq text 0 at) "package clgrpc.small;"
                 (subseq text (+ at (length line))))))

(defun small (message)
  "What MESSAGE is as one of the package clgrpc.small."
  (parse-message "clgrpc.small.All" (serialize message)))

(test messages-for-little-code-are-coded-as-others
  "Octets, JSON and text of messages with :OPTIMIZE-FOR :CODE-SIZE are those of messages with coders
of their own, and what a field that nobody knows holds is kept."
  (define-small "small.proto" (source-of-all))
  (let ((unknown (unhex "fa ff 01 03 61 62 63")))
    (dolist (message (list (all) (full-message)
                           (parse-message "clgrpc.test.All" unknown)))
      (let ((small (small message)))
        (is (string= "clgrpc.small.All" (message-type-name (message-type-of small))))
        (is (equalp (serialize message :deterministic t) (serialize small :deterministic t)))
        (is (string= (message-json message) (message-json small)))
        (is (string= (message-text message) (message-text small)))
        (is (message= small (copy-message small)))
        (is (message= small (round-trip small)))))))

(test octets-for-little-code-are-refused-as-others-are
  "A message of code size refuses the same octets as one of speed, and for the same reason: octets
cut anywhere, and messages deeper than they may be."
  (define-small "small.proto" (source-of-all))
  (let* ((octets (serialize (full-message) :deterministic t))
         (deep (let ((inner (clgrpc.test:make-inner)))
                 (dotimes (i 101) (setf inner (clgrpc.test:make-inner :next inner)))
                 (serialize (all :f17 inner)))))
    (flet ((outcome (type octets)
             (handler-case (progn (parse-message type octets) :read)
               (protobuf-error (condition) (type-of condition)))))
      (is (loop for end to (length octets)
                always (eq (outcome "clgrpc.test.All" (subseq octets 0 end))
                           (outcome "clgrpc.small.All" (subseq octets 0 end)))))
      (is (not (eq :read (outcome "clgrpc.test.All" deep))))
      (is (eq (outcome "clgrpc.test.All" deep) (outcome "clgrpc.small.All" deep))))))

(test messages-for-little-code-survive-a-new-definition
  "A message made before its type was defined again is written with the new definition's fields."
  (flet ((define-note (fields)
           (define-small "note.proto" (format nil "syntax = 'proto3'; package clgrpc.note;
message Note { ~A }" fields))))
    (define-note "string text = 1; int32 old = 2;")
    (let ((note (parse-text-message "clgrpc.note.Note" "text: 'x' old: 3")))
      (define-note "string text = 1; int32 old = 2; string more = 3;")
      (setf (field-value note "more") "y")
      (is (string= "text: \"x\" old: 3 more: \"y\""
                   (string-trim " " (message-text (round-trip note) :single-line t))))
      (signals error (funcall (message-type-sizer (find-message-type "clgrpc.note.Note"))
                              (clgrpc.test:make-inner))))))

(test constructors-for-little-code-are-as-others
  "The constructor of a message of code size takes and refuses the same arguments as a compiled one,
with reports of the same length, since the names of the packages have one length."
  (flet ((text (package)
           (format nil "syntax = 'proto3'; package ~A; message M { int32 a = 1; oneof pick { int32 ~
                        b = 2; M c = 3; } repeated M more = 4; }" package))
         (outcome (package arguments)
           (let ((make (find-symbol "MAKE-M" package)))
             (handler-case
                 (message-json (apply make (substitute (funcall make :a 7) 'm arguments)))
               (error (condition)
                 (list (type-of condition) (length (princ-to-string condition))))))))
    (define "quick.proto" (text "clgrpc.quick"))
    (define-small "light.proto" (text "clgrpc.light"))
    (dolist (arguments '(() (:a 3 :b 0) (:a 1 :a 2) (:c m) (:c nil) (:b 3 :c nil) (:c nil :b 3)
                         (:b 3 :c m) (:c m :b 3) (:c 3) (:a nil) (:a "x") (:more (m)) (:more (1))
                         (:pick 3) (:d 1) (:d 1 :allow-other-keys t) (:a) (3 4)))
      (is (equal (outcome "CLGRPC.QUICK" arguments) (outcome "CLGRPC.LIGHT" arguments))
          "~S" arguments))
    (is (equal "{\"b\":3}" (outcome "CLGRPC.LIGHT" '(:b 3 :c nil))))
    (is (typep (outcome "CLGRPC.LIGHT" '(:b 3 :c m)) '(cons (eql misuse))))))
