;;;; Coders that serve any layout, compared with compiled ones for the same definitions.

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
  "MESSAGE as a message of the package clgrpc.small."
  (parse-message "clgrpc.small.All" (serialize message)))

(test messages-for-little-code-are-coded-as-others
  "Octets, JSON and text of messages with :OPTIMIZE-FOR :CODE-SIZE equal those of messages with
coders of their own, and unknown fields are kept."
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
  "Messages of both kinds refuse the same octets for the same reason: octets cut at any place, and
messages that nest too deep."
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

(test each-piece-of-a-message-must-be-valid
  "Both kinds of coder refuse a wrong message that another member of its oneof replaces, and a field
that begins in one piece of a message and ends in the next."
  (define-small "small.proto" (source-of-all))
  (dolist (octets '("8a0100 8a0100 aa070180 920700" "8a0100 8a0100 aa070180 b80600 aa0700"
                    "8a0100 8a010108 8a010105"))
    (signals protobuf-error (parse-message "clgrpc.test.All" (unhex octets)) "~A" octets)
    (signals protobuf-error (parse-message "clgrpc.small.All" (unhex octets)) "~A" octets)))

(defun least-room (type octets)
  "The least :DECODED-OCTETS, a multiple of 8, with which OCTETS can be read as a message of TYPE."
  (loop for room from 0 by 8
        when (handler-case (protobuf::parse-octets (find-message-type type) octets 0 (length octets)
                                                   :decoded-octets room)
               (protobuf-error () nil))
          return room))

(test both-kinds-of-coder-charge-the-same-memory
  "This includes messages that another member of their oneof replaces again and again."
  (loop for (definer package) in '((define "clgrpc.charged.quick")
                                   (define-small "clgrpc.charged.light"))
        do (funcall definer (format nil "~A.proto" package)
                    (format nil "syntax = 'proto3'; package ~A; message E { } message S { int32 a ~
                                 = 1; } message M { oneof pick { E e = 1; S s = 2; int32 i = 3; ~
                                 E f = 4; } }"
                            package)))
  (dolist (pattern '("0a00 2200" "0a00 1801" "1200 1801" "12020801 0a00"))
    (let* ((octets (apply #'concatenate 'octets
                          (make-list 100 :initial-element (unhex pattern))))
           (quick (least-room "clgrpc.charged.quick.M" octets)))
      (is (< 0 quick))
      (is (= quick (least-room "clgrpc.charged.light.M" octets)) "~A" pattern))))

(test messages-for-little-code-survive-a-new-definition
  "A message made before its type was redefined is written with the new definition's fields."
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

(defun without-package (text package)
  "TEXT with the word PACKAGE in place of the name PACKAGE, in capitals or not."
  (loop with from = 0
        for at = (search package text :start2 from :test #'char-equal)
        collect (subseq text from at) into parts
        while at
        do (setf from (+ at (length package)))
        finally (return (format nil "~{~A~^PACKAGE~}" parts))))

(defun constructed (package arguments)
  "The result of MAKE-M of PACKAGE with ARGUMENTS, as JSON; or the type and the report of the error.
A symbol M in ARGUMENTS stands for a message."
  (let ((make (find-symbol "MAKE-M" (string-upcase package))))
    (handler-case (message-json (apply make (subst (funcall make :a 7) 'm arguments)))
      (error (condition)
        (list (type-of condition) (without-package (princ-to-string condition) package))))))

(defun define-constructed (definer syntax package)
  "Define, by DEFINER, a file of SYNTAX for CONSTRUCTED, whose fields are of all kinds."
  (let ((label (if (string= "proto2" syntax) "optional" "")))
    (funcall definer (format nil "~A.proto" package)
             (format nil "syntax = '~A'; package ~A; enum Color { RED = 0; BLUE = 3; } message M { ~
                          ~A int32 a = 1; oneof pick { int32 b = 2; M c = 3; } repeated M more = ~
                          4; ~A bytes data = 5; ~:*~A Color color = 6; ~:*~A M next = 7; ~
                          optional int32 sure = 8; optional string text = 9; ~
                          map<string, int32> counts = 10; map<int32, M> known = 11; }"
                     syntax package label label))))

(test constructors-for-little-code-are-as-others
  "The constructors of both kinds accept and refuse the same arguments, with the same reports except
for the package's name, in proto2 and in proto3."
  (dolist (syntax '("proto2" "proto3"))
    (let ((quick (format nil "clgrpc.quick.~A" syntax))
          (light (format nil "clgrpc.light.~A" syntax)))
      (define-constructed #'define syntax quick)
      (define-constructed #'define-small syntax light)
      (dolist (arguments '(() (:a 3 :b 0) (:a 1 :a 2) (:c m) (:c nil) (:b 3 :c nil) (:c nil :b 3)
                           (:b 3 :c m) (:c m :b 3) (:c 3) (:a nil) (:a "x") (:more (m)) (:more (1))
                           (:more nil) (:pick 3) (:d 1) (:d 1 :allow-other-keys t) (:a) (3 4)
                           (:data #(0 255)) (:data #()) (:data #(256)) (:data "x") (:data nil)
                           (:color :blue) (:color 3) (:color 4) (:color :red) (:color :mauve)
                           (:color nil) (:next m) (:next nil) (:next 3) (:next m :c m :b 3)
                           (:a 0) (:sure 0) (:sure nil) (:text "") (:text "x") (:text 3) (:text nil)
                           (:counts (("x" . 1) ("y" . 0))) (:counts (("x" . "y")))
                           (:counts ((1 . 1))) (:counts (1)) (:counts 3) (:counts nil)
                           (:known ((1 . m))) (:known ((1 . 1))) (:known ((1 . nil)))))
        (is (equal (constructed quick arguments) (constructed light arguments)) "~S" arguments))
      (is (equal "{\"b\":3}" (constructed light '(:b 3 :c nil))))
      (is (equal "{}" (constructed light '(:next nil))))
      (is (equal (if (string= "proto2" syntax) "{\"a\":0,\"sure\":0}" "{\"sure\":0}")
                 (constructed light '(:a 0 :sure 0))))
      (is (search "make-m takes one of :b, :c" (second (constructed light '(:b 3 :c m))))))))

(test constructors-for-little-code-make-no-garbage
  "A given field outside of oneofs allocates only the message."
  (define-constructed #'define-small "proto3" "clgrpc.light.proto3")
  (let ((make (fdefinition (find-symbol "MAKE-M" "CLGRPC.LIGHT.PROTO3"))))
    (flet ((octets (&rest arguments)
             (let ((before (sb-ext:get-bytes-consed)))
               (loop repeat 10000 do (apply make arguments))
               (- (sb-ext:get-bytes-consed) before))))
      (is (< (- (octets :a 1 :sure 2 :next nil) (octets)) 100000)))))
