;;;; The limits of writing a message: one depth and one allowance for Anys within Anys, and a limit
;;;; for the text. Programs that log or translate messages write those of peers.

(in-package #:clgrpc.tests.protobuf)

(defparameter *any-url* "a/google.protobuf.Any")

(defun nested-any (levels &optional (innermost (any (google.protobuf:make-duration :seconds 1))))
  "An Any in an Any and so on, LEVELS of them around INNERMOST, and the size of its octets. It is
made from the inside out, in one vector."
  (let* ((url (serialize (google.protobuf:make-any :type-url *any-url*)))
         (content (serialize innermost))
         (room (+ (length content) (* levels (+ (length url) 6))))
         (octets (make-octets room))
         (start (- room (length content))))
    (replace octets content :start1 start)
    (loop repeat levels
          do (let* ((size (- room start))
                    (head (concatenate 'octets url (octets-of 18)
                                       (loop for rest = size then (ash rest -7)
                                             collect (if (< rest 128) rest
                                                         (logior 128 (logand rest 127)))
                                             until (< rest 128)))))
               (decf start (length head))
               (replace octets head :start1 start)))
    (parse-message 'google.protobuf:any (subseq octets start))))

(defun levels-in (text)
  "The number of Anys whose messages are in TEXT."
  (loop for at = (search "] {" text) then (search "] {" text :start2 (1+ at))
        while at count t))

(defun consed-by (function)
  "Two values: FUNCTION's, and the number of octets that it allocates."
  (let ((before (sb-ext:get-bytes-consed)))
    (values (funcall function) (- (sb-ext:get-bytes-consed) before))))

(test anys-in-anys-are-written-to-a-depth
  "260 KB of them took 1 GB and the process."
  (let* ((message (nested-any 10000)) (size (serialized-size message)))
    (is (< 250000 size 310000))
    (dolist (holder (list message (holder :any message)
                          (holder :inner (holder :any message))))
      (multiple-value-bind (error octets)
          (consed-by (lambda ()
                       (handler-case (message-json holder)
                         (message-print-error (error) (princ-to-string error)))))
        (is (search ":max-message-depth" error))
        (is (< octets (* 400 size))))
      (multiple-value-bind (text octets) (consed-by (lambda () (message-text holder)))
        (is (< 90 (levels-in text) 102))
        (is (< octets (* 400 size)))
        (is (message= holder (parse-text-message (message-type-of holder) text))))))
  (is (search "@type" (message-json (nested-any 99))))
  (let ((message (nested-any 99)))
    (is (message= message (parse-json-message 'google.protobuf:any (message-json message))))
    (is (message= message (parse-text-message 'google.protobuf:any (message-text message))))
    (signals message-print-error (message-json message :max-message-depth 50))
    (is (= 50 (levels-in (message-text message :max-message-depth 50))))
    (finishes (message-json (nested-any 800) :max-message-depth 1000))
    (finishes (message-text (nested-any 800) :max-message-depth 1000)))
  (is (< (length (princ-to-string (nested-any 10000))) 500)))

(test anys-of-dynamic-types-are-bounded-as-well
  (let* ((pool (make-type-pool (list (find-file-descriptor "google/protobuf/any.proto"))))
         (type (find-pool-type pool "google.protobuf.Any"))
         (message (parse-message type (serialize (nested-any 10000)))))
    (flet ((finder (name) (find-pool-type pool name)))
      (signals message-print-error (message-json message :finder #'finder))
      (is (< 90 (levels-in (message-text message :finder #'finder)) 102)))))

(test a-finder-knows-the-types-of-anys
  "In reading and writing, in JSON and text format; without it only the image's types are known."
  (let ((odd (google.protobuf:make-any :type-url "x/odd.Name"
                                       :value (serialize (clgrpc.test:make-inner :a 3)))))
    (flet ((finder (name)
             (and (string= "odd.Name" name) (find-message-type "clgrpc.test.Inner"))))
      (loop for (write read expected) in `((message-json parse-json-message
                                            "{\"@type\":\"x/odd.Name\",\"a\":3}")
                                           (message-text parse-text-message
                                            "[x/odd.Name] { a: 3 }"))
            for text = (substitute #\Space #\Newline
                                   (funcall write odd :finder #'finder))
            do (is (string= (remove #\Space expected) (remove #\Space text)))
               (is (message= odd (funcall read 'google.protobuf:any text :finder #'finder)))
               (signals error (funcall read 'google.protobuf:any text))))
    (signals message-print-error (message-json odd))
    (is (search "type_url: \"x/odd.Name\"" (message-text odd)))))

(test the-memory-of-anys-is-limited
  "Two octets make an empty message, in Anys too; one allowance is for all of a message."
  (let* ((crowd (make-octets 3000)))
    (loop for i from 0 below 3000 by 3 do (replace crowd (unhex "fa0200") :start1 i))
    (let* ((any (google.protobuf:make-any :type-url "a/clgrpc.test.All" :value crowd))
           (holder (holder :any any)))
      (is (search "\"r17\":[{}," (message-json holder)))
      (signals protobuf-error (message-json holder :max-decoded-octets 1000))
      (is (search "value: " (message-text holder :max-decoded-octets 1000)))
      ;; several share it
      (let ((many (holder :inner (holder :any any :inner (holder :any any)))))
        (is-true (message-json many :max-decoded-octets 250000))
        (signals protobuf-error (message-json many :max-decoded-octets 100000))
        (is-true (message-json holder :max-decoded-octets 100000)))))
  ;; each level copies what is in it
  (let ((message (nested-any 90 (google.protobuf:make-any
                                 :type-url "a/google.protobuf.StringValue"
                                 :value (serialize (google.protobuf:make-string-value
                                                    :value (make-string 1000000
                                                                        :initial-element #\x)))))))
    (signals message-print-error (message-json message))
    (multiple-value-bind (text octets) (consed-by (lambda () (message-text message :as :octets)))
      (is (< 1000000 (length text) 5000000))
      (is (< octets 300000000)))))

(test what-is-written-nests-as-deep-as-what-is-read
  (flet ((nested (depth)
           (let ((message (clgrpc.test:make-inner)))
             (loop repeat depth do (setf message (clgrpc.test:make-inner :next message)))
             message)))
    (dolist (writer '(message-json message-text))
      (is (stringp (funcall writer (nested 100))))
      (signals message-print-error (funcall writer (nested 101)))
      (is (stringp (funcall writer (nested 1000) :max-message-depth 1000))))
    (is (message= (nested 100) (parse-message 'clgrpc.test:inner (serialize (nested 100)))))
    (is (message= (nested 100) (parse-json-message 'clgrpc.test:inner (message-json (nested 100)))))
    (is (message= (nested 100) (parse-text-message 'clgrpc.test:inner (message-text (nested 100)))))
    (signals protobuf-error (parse-message 'clgrpc.test:inner (serialize (nested 101))))
    (let ((deep (parse-message 'clgrpc.test:inner (serialize (nested 1000))
                               :max-message-depth 1000)))
      (is (message= deep (copy-message deep)))
      (is (stringp (princ-to-string deep))))))

(test texts-have-a-limit
  "Indentation and names can make a short message long."
  (let ((message (all :r3 (make-list 1000 :initial-element 1))))
    (loop repeat 30 do (setf message (all :f17 (clgrpc.test:make-inner) :r3 '(1)
                                          :r17 (list (clgrpc.test:make-inner :xs '(1 2))))))
    (signals message-print-error (message-json message :max-octets 20))
    (signals message-print-error (message-text message :max-octets 20)))
  (let ((numbers (all :r3 (make-list 1000000 :initial-element 1))))
    (signals message-print-error (message-json numbers :max-octets 1000000))
    (is (< (nth-value 1 (consed-by (lambda ()
                                     (signals message-print-error
                                       (message-json numbers :indent 16 :max-octets 100000)))))
           4000000))))

(test urls-of-anys-cannot-forge-text
  "A URL is written in brackets only if it is valid there."
  (dolist (prefix (list (format nil "a~C]0;title~C" (code-char 27) (code-char 7))
                        (format nil "a] {}~%forged: 1 [b") "é" "" "/a" "%zz"))
    (let* ((message (holder :any (google.protobuf:make-any
                                  :type-url (format nil "~A/clgrpc.test.Inner" prefix))))
           (text (message-text message)))
      (is (search "type_url: " text))
      (is (every (lambda (char) (or (char= char #\Newline) (not (unsafe-char-p char)))) text))
      (is (message= message (parse-text-message (message-type-of message) text))))))

(test errors-show-what-a-peer-wrote-visibly-and-briefly
  (let ((evil (format nil "a~C[31m~%~C/~A" (code-char 27) (code-char #x9B)
                      (make-string 100000 :initial-element #\x))))
    (flet ((check (function)
             (let ((text (handler-case (progn (funcall function) nil)
                           (protobuf-error (error) (princ-to-string error)))))
               (is-true text)
               (is (< (length text) 1500))
               (is (notany #'unsafe-char-p text)))))
      (check (lambda () (message-json (holder :any (google.protobuf:make-any :type-url evil)))))
      (check (lambda () (parse-json-message 'clgrpc.test:all (write-json `((,evil . 1))))))
      (check (lambda () (parse-json-message 'clgrpc.test:all
                                            (write-json `(("m1" . ((,evil . :true))))))))
      (check (lambda () (parse-json-message 'clgrpc.test:all (write-json `(("f16" . ,evil))))))
      (check (lambda () (parse-json-message 'clgrpc.test:all (write-json `(("f3" . ,evil))))))
      (check (lambda () (parse-text-message 'clgrpc.test:all evil)))
      (check (lambda () (any-unpack (google.protobuf:make-any :type-url evil)))))))
