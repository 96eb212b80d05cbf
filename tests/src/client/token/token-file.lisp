;;;; Tokens in files (gRFC A97): read when needed, read again, absent, damaged, huge.

(in-package #:clgrpc.tests.token)

(defun web-token (seconds &optional (name "t"))
  "An unsigned JSON Web Token that expires in SECONDS."
  (format nil "e30.~A.~A"
          (token::base64-url
           (string-octets (json "exp" (+ seconds (floor (token::wall-now) 1000000000)))))
          name))

(defun write-text (path text)
  (with-open-file (stream path :direction :output :if-exists :supersede)
    (write-string text stream)))

(defmacro with-token-file ((path text) &body body)
  `(uiop:with-temporary-file (:pathname ,path)
     (write-text ,path ,text)
     (with-log () ,@body)))

(test tokens-from-files
  "The file is read once, and again before its token expires or at the given interval."
  (let ((first (web-token 3600 "one")) (second (web-token 3600 "two")))
    (with-token-file (path (format nil "  ~A~%" first))
      (let ((credentials (grpc:token-file (uiop:native-namestring path))))
        (is (equal first (ask-token credentials)))
        (write-text path second)
        (is (equal first (ask-token credentials)))
        (age-token credentials :refresh -1 :end 30)
        (eventually (equal second (ask-token credentials)))))
    (with-token-file (path "opaque")
      (let ((credentials (grpc:token-file path :seconds 10)))
        (is (equal "opaque" (ask-token credentials)))
        (let ((kept (token::token-kept credentials)) (now (token::wall-now)))
          (is (< (token::kept-token-refresh-ns kept) (+ now (* 11 1000000000))))
          (is (> (token::kept-token-end-ns kept) (+ now (* 500 1000000000)))))))))

(test files-without-a-token
  (uiop:with-temporary-file (:pathname path)
    (uiop:delete-file-if-exists path)
    (with-log ()
      (let ((credentials (grpc:token-file path)))
        (is (eq :unavailable (status-of-token credentials)))
        (write-text path (web-token 3600))
        (is (eq :unavailable (status-of-token credentials))) ; the back-off
        (end-back-off credentials)
        (is (eq :ok (status-of-token credentials)))
        (uiop:delete-file-if-exists path))))
  (with-log ()
    (loop for (path text) in (list (list "/nonexistent/token"
                                         "in /nonexistent/token cannot be read: this file is missing")
                                   (list (uiop:temporary-directory)
                                         (format nil "in ~A cannot be read: "
                                                 (uiop:temporary-directory))))
          do (multiple-value-bind (status said)
                 (status-of-token (grpc:token-file path :seconds 10))
               (is (eq :unavailable status))
               (is (and said (search text said)) "~S is not in ~S" text said))))
  (loop for (text . arguments) in `((,(web-token -5)) ("opaque") ("") (,(format nil "~%~%"))
                                    ("" :seconds 10) ("a b" :seconds 10)
                                    (,(make-string 70000 :initial-element #\a) :seconds 10)
                                    (,(web-token -5) :seconds 10))
        do (with-token-file (path text)
             (is (eq :unauthenticated
                     (status-of-token (apply #'grpc:token-file path arguments)))
                 "~S" (subseq text 0 (min 40 (length text)))))))

(test wrong-token-files-are-misuse
  (signals grpc:misuse (grpc:token-file 5))
  (signals grpc:misuse (grpc:token-file "x" :seconds 0)))
