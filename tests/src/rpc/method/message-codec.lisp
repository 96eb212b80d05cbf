;;;; Codecs: their names, and methods whose messages are in one.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.method)

(defun register-text-codec (name)
  "Register a codec whose messages are strings, of no type."
  (encoding:register-codec name :serialize (fn (text _type) (string-octets text))
                              :deserialize (fn (octets _type) (octets-string octets))))

(test codecs-have-names
  (dolist (name '("words" "a" "-_.9" "abcdefghijklmnopqrstuvwxyz123456"))
    (is (equal name (register-text-codec name))))
  (let ((codec (encoding:find-codec "words")))
    (is (eq codec (encoding:find-codec "WORDS")))
    (register-text-codec "words")
    (is (eq codec (encoding:find-codec "words")) "a codec that is registered again stays the same"))
  (dolist (name '("proto" "" "Words" "a b" "a,b" "a;b" "ä" :words nil
                  "abcdefghijklmnopqrstuvwxyz1234567"))
    (signals misuse (register-text-codec name)))
  (signals misuse (encoding:register-codec "half" :serialize #'list))
  (is (null (encoding:find-codec "half")))
  (is (null (encoding:codec-of-name nil)))
  (is (null (encoding:codec-of-name "proto")))
  (dolist (name (list "half" :words 5))
    (signals misuse (encoding:codec-of-name name)))
  (signals misuse (method:generic-method "a.B/C" :codec "half")))

(test methods-in-a-codec
  "There is one for each codec, always the same; the method itself does not change."
  (register-text-codec "words")
  (let* ((codec (encoding:find-codec "words"))
         (method (method:generic-method "a.B/C"))
         (coded (method:method-in-codec method codec)))
    (is (null (method:rpc-method-codec method)))
    (is (eq codec (method:rpc-method-codec coded)))
    (is (eq coded (method:method-in-codec method codec)))
    (is (eq coded (method:method-in-codec coded codec)))
    (is (eq method (method:method-in-codec method nil)))
    (is (string= (method:rpc-method-path method) (method:rpc-method-path coded)))
    (is (protobuf:coded-type-p (method:rpc-method-request-type coded)))
    (is (not (protobuf:coded-type-p (method:rpc-method-request-type method))))))

(defun descend (octets type)
  "Recurse until the stack is full."
  (let ((result (descend octets type)))
    (incf (first result))
    result))

(test codecs-that-fail
  "A deserializer's failure of any kind is a protobuf-error; other values than octets are not sent."
  (flet ((type-of-codec (serialize deserialize)
           (encoding:register-codec "failing" :serialize serialize :deserialize deserialize)
           (method:rpc-method-request-type (method:generic-method "a.B/C" :codec "failing"))))
    (loop for (function text)
            in (list (list (lambda (octets type) (declare (ignore type)) (aref octets 100)) "says")
                     (list (lambda (octets type) (declare (ignore octets type)) nil) "nil")
                     (list #'descend "stack"))
          do (let ((type (type-of-codec (constantly (octets-of)) function)))
               (handler-case (protobuf:decode-coded type (octets-of 1 2) 0 2)
                 (protobuf:protobuf-error (error)
                   (is (search text (protobuf:protobuf-error-text error))))
                 (:no-error (message) (fail "decoded as ~S" message)))))
    (dolist (result (list nil 5 "text" (vector 1 256) (list 1 2)))
      (signals misuse
        (protobuf:code-message (type-of-codec (constantly result) #'list) 1)))
    (is (equalp (octets-of 1 2)
                (protobuf:raw-message-octets
                 (protobuf:code-message (type-of-codec (constantly (vector 1 2)) #'list) 1))))))
