;;;; Names and keys.

(in-package #:clgrpc.tests.discovery)

(test names-of-services
  (is (string= "clgrpc/service-config/prod/greeter" (discovery:service-config-key "prod/greeter")))
  (is (string= "greeter/" (clgrpc.discovery::name-prefix "greeter")))
  (dolist (name (list "" "/greeter" "greeter/" "gree ter" "gréeter" nil :greeter))
    (signals misuse (discovery:service-config-key name))))

(defun name-p (name)
  (handler-case (string= name (discovery::check-name name))
    (misuse () nil)))

(test names-have-any-ends-but-a-slash
  "Each pair of a first and a last character, alike or not, with one between them and without."
  (flet ((inner-p (code) (< 32 code 127))
         (end-p (code) (and (< 32 code 127) (/= code (char-code #\/)))))
    (dotimes (first 130)
      (unless (eq (end-p first) (name-p (string (code-char first))))
        (fail "~S alone" (code-char first)))
      (unless (eq (inner-p first) (name-p (format nil "a~Ca" (code-char first))))
        (fail "~S between others" (code-char first)))
      (dotimes (last 130)
        (dolist (between '("" "-" "/"))
          (let ((name (format nil "~C~A~C" (code-char first) between (code-char last))))
            (unless (eq (and (end-p first) (end-p last) t) (name-p name))
              (fail "~S" name)))))))
  (pass))

(test names-have-a-longest-length
  (dolist (end '(#\a #\b))
    (flet ((name (length)
             (concatenate 'string "a" (make-string (- length 2) :initial-element #\c)
                          (string end))))
      (is-true (name-p (name 512)))
      (is (not (name-p (name 513)))))))
