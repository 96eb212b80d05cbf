;;;; The names of encodings, in headers and to users.

(in-package #:clgrpc.tests.wire)

(defun shown (encodings)
  (mapcar #'princ-to-string encodings))

(test encodings-for-users
  (is (null (encoding:encoding-of-name nil)))
  (is (null (encoding:encoding-of-name :identity)))
  (is (search "gzip" (princ-to-string (encoding:encoding-of-name :gzip))))
  (dolist (name '(:zstd "gzip" t 1)) (signals misuse (encoding:check-compression name))))

(test encodings-in-headers
  (flet ((parse (text) (wire:parse-encoding (ascii-octets text)))
         (accepted (text)
           (wire:accepted-encodings (hpack:string-field "grpc-accept-encoding" text))))
    (is (eq (encoding:encoding-of-name :gzip) (parse "gzip")))
    (is (eq (encoding:encoding-of-name :deflate) (parse "deflate")))
    (is (null (parse "identity")))
    (is (eq :unknown (wire:parse-encoding (octets-of 103 255 0))))
    (is (search "\"gÿ\\x00\"" (nth-value 1 (wire:parse-encoding (octets-of 103 255 0)))))
    (is (null (accepted (map 'string #'code-char (octets-of 255 44 255)))))
    (dolist (text '("" "GZIP" "gzip,deflate" "snappy")) (is (eq :unknown (parse text))))
    (loop for (text . names) in '(("") ("identity") ("gzip" :gzip) ("snappy, gzip ,br" :gzip)
                                  ("identity,deflate,gzip" :deflate :gzip) (",,,"))
          do (is (equal (mapcar #'encoding:encoding-of-name names) (accepted text)) "~S" text))))

(test what-a-field-accepts-follows-the-registered-encodings
  "The same header, which is remembered, names an encoding as soon as that is registered."
  (let ((before (encoding:encodings))
        (field (hpack:string-field "grpc-accept-encoding" "of-tests,gzip")))
    (flet ((accepted () (length (wire:accepted-encodings field))))
      (unwind-protect
           (progn
             (is (= 1 (accepted)))
             (encoding:register-compressor :of-tests
                                      :compress (fn (octets _level) octets)
                                      :decompress (lambda (octets write) (funcall write octets)))
             (is (= 2 (accepted))))
        (setf encoding::**encodings** before))
      (is (= 1 (accepted))))))

(test turns-are-given-back
  "A function with a turn may end in any way; a turn that was not taken is not given back."
  (flet ((turns-left (function &rest more)
           (let ((semaphore (sb-thread:make-semaphore :count 1)))
             (catch 'unwound
               (apply #'wire:call-by-turns semaphore
                      (lambda ()
                        (is (= 0 (sb-thread:semaphore-count semaphore)))
                        (funcall function))
                      more))
             (sb-thread:semaphore-count semaphore))))
    (is (= 1 (turns-left (constantly nil))))
    (is (= 1 (turns-left (lambda () (throw 'unwound nil)))))
    (is (= 1 (turns-left (constantly nil)
                         :take (fn (_semaphore _turn) (throw 'unwound nil)))))
    (is (equal '(1 2) (multiple-value-list
                       (wire:call-by-turns (sb-thread:make-semaphore :count 1)
                                           (lambda () (values 1 2))))))))
