;;;; tracestate: the cases of W3C's test suite for Trace Context, and the cost of hostile texts.

(in-package #:clgrpc.tests.trace)

(defun state (&rest texts) (trace::read-tracestate texts))

(defun repeated (count char) (make-string count :initial-element char))

(test tracestates-that-are-right
  (is (string= "foo=1,bar=2" (state "foo=1,bar=2")))
  (is (string= "foo=1" (state "foo=1" "")))
  (is (string= "foo=1" (state "" "foo=1")))
  (is (string= "foo=1,bar=2,rojo=1,congo=2,baz=3" (state "foo=1,bar=2" "rojo=1,congo=2" "baz=3")))
  (is (string= "foo=1,bar=2,baz=3"
               (state (format nil "foo=1 ~C , ~:*~C bar=2, ~:*~C baz=3" #\Tab))))
  (is (string= "foo=1" (state (format nil "~C foo=1 ~:*~C" #\Tab))))
  (let* ((key "abcdefghijklmnopqrstuvwxyz0123456789_-*/")
         (value (remove-if (lambda (char) (find char ",="))
                           (coerce (loop for code from 32 to 126 collect (code-char code))
                                   'string))))
    (dolist (key (list key (concatenate 'string key "@a-z0-9_-*/")))
      (is (string= (format nil "~A=~A" key value) (state (format nil "~A=~A" key value))))))
  (is (string= "" (state)))
  (is (string= "" (state ""))))

(test tracestates-that-are-wrong
  (dolist (texts '(("foo =1") ("FOO=1") ("foo.bar=1") ("foo@=1,bar=2") ("@foo=1,bar=2")
                   ("foo@@bar=1,bar=2") ("foo@bar@baz=1,bar=2") ("foo=bar=baz") ("foo=,bar=3")
                   ("foo") ("=1") ("foo=1;bar=2=3")))
    (is (string= "" (apply #'state texts)) "~S" texts)))

(test the-first-of-two-members-with-a-key-stays
  (dolist (texts '(("foo=1,foo=1") ("foo=1,foo=2") ("foo=1" "foo=1") ("foo=1" "foo=2")))
    (is (string= "foo=1" (apply #'state texts)) "~S" texts))
  (is (string= "a=1,foo=1,b=2" (state "a=1,foo=1" "b=2,foo=2,a=3"))))

(test limits-of-tracestates
  (flet ((members (count)
           (format nil "~{bar~2,'0D=1~^,~}" (loop for i from 1 to count collect i))))
    (is (string= (members 32) (state (members 32))))
    (is (string= "" (state (members 33)))))
  (flet ((with (key) (state "foo=1" (concatenate 'string key "=1")))
         (with-foo-p (text) (search "foo=1" text)))
    (is-true (with-foo-p (with (repeated 256 #\z))))
    (is (string= "" (with (repeated 257 #\z))))
    (is-true (with-foo-p (with (format nil "~A@~A" (repeated 241 #\t) (repeated 14 #\v)))))
    (is (string= "" (with (format nil "~A@v" (repeated 242 #\t)))))
    (is (string= "" (with (format nil "t@~A" (repeated 15 #\v)))))
    (is (string= "" (state (format nil "foo=~A" (repeated 257 #\x)))))))

(test long-tracestates-lose-members
  "Long members are removed first, then the last ones."
  (let ((long (format nil "long=~A" (repeated 200 #\x)))
        (short (format nil "~{k~D=~A~^,~}" (loop for i from 1 to 5
                                                 collect i collect (repeated 80 #\y)))))
    (is (string= short (state (format nil "~A,~A" long short))))
    (let ((text (state (format nil "~{k~2,'0D=~A~^,~}" (loop for i from 1 to 20
                                                            collect i
                                                            collect (repeated 80 #\y))))))
      (is (< 400 (length text) 513))
      (is (eql 0 (search "k01=" text))))))

(test tracestate-of-a-context
  (let ((context (trace::read-traceparent
                  (ascii-octets "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
                  (state "foo=1, t@v=2"))))
    (is (equal '(("foo" . "1") ("t@v" . "2")) (grpc:trace-state context)))))

(defun trace-fields (&rest entries)
  "The fields of a call, of ENTRIES, names and values, after a traceparent."
  (coerce (loop for (name value)
                  on (list* "traceparent" "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                            entries)
                by #'cddr
                collect (clgrpc.hpack:string-field name value))
          'simple-vector))

(defun consed-by-extraction (propagators fields)
  "The octets allocated for reading the context of FIELDS once more, the mean of a thousand times."
  (flet ((extract () (trace::extract propagators fields)))
    (extract)
    (let ((before (sb-ext:get-bytes-consed)))
      (loop repeat 1000 do (extract))
      (floor (- (sb-ext:get-bytes-consed) before) 1000))))

(test what-a-peer-repeats-is-read-once
  "A peer sends a long field of the table as one octet, in each request."
  (let* ((text (format nil "~{k~D=~A~^,~}" (loop for i from 1 to 20
                                                 collect i collect (repeated 80 #\y))))
         (fields (trace-fields "tracestate" text)))
    (flet ((state-then () (trace:context-state (trace::extract '(:tracecontext) fields))))
      (is (string= (state text) (state-then)))
      (is (eq (state-then) (state-then)))
      (is (< (consed-by-extraction '(:tracecontext) fields)
             (+ 200 (consed-by-extraction '(:tracecontext) (trace-fields))))))))

(test what-is-too-long-is-not-read
  (let ((most (format nil "~{k~D=~A~^,~}" (loop for i from 1 to 8
                                                collect i collect (repeated 252 #\y)))))
    (is (= 2047 (length most)))
    (is (eql 0 (search "k1=" (state most))))
    (is (eql 0 (search "k1=" (state (concatenate 'string most ",")))))
    (is (string= "" (state (concatenate 'string most ",,"))))
    (let ((half (format nil "a=~A" (repeated 254 #\y)))
          (other (format nil "z=~A" (repeated 253 #\y))))
      (is (= 511 (+ (length half) (length other))))
      (is (string= (format nil "~A,~A" half other) (state half other)))
      (is (string= "" (state half other "b=1")) "several fields may have less")))
  (is (< (consed-by-extraction '(:grpc-trace-bin)
                               (trace-fields "grpc-trace-bin" (repeated 15000 #\A)))
         200)))
