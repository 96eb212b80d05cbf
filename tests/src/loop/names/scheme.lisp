;;;; The registry of schemes.

(in-package #:clgrpc.tests.loop)

(defun call-with-schemes-of-ones-own (function)
  (with-changed (loop::**schemes**) (funcall function)))

(test schemes-are-found-by-what-stands-before-the-colon
  (call-with-schemes-of-ones-own
   (lambda ()
     (let ((pigeon (register-scheme "Pigeon" :open #'list)))
       (is (string= "pigeon" (scheme-name pigeon)))
       (is (eq pigeon (find-scheme "pigeon:post")))
       (is (eq pigeon (find-scheme "PIGEON:")))
       (dolist (address '("pigeons:post" "pigeo:post" "pigeon" "a pigeon:post" "127.0.0.1:1" nil
                          1))
         (is (null (find-scheme address)))))))
  (is (null (find-scheme "pigeon:post"))))

(test schemes-are-registered-in-parts
  "A layer replaces its own function of a scheme, and no other layer's."
  (call-with-schemes-of-ones-own
   (lambda ()
     (register-scheme "pigeon" :open #'list :listen #'vector)
     (let ((pigeon (register-scheme "PIGEON" :open #'cons :resolver #'identity)))
       (is (eq pigeon (find-scheme "pigeon:post")))
       (is (eq #'cons (scheme-open pigeon)))
       (is (eq #'vector (scheme-listen pigeon)))
       (is (eq #'identity (scheme-resolver pigeon)))
       (is (= 1 (count "pigeon" loop::**schemes** :key #'scheme-name :test #'string=)))))))

(test schemes-of-sockets-are-added
  "PARSE-TARGET knows the schemes registered with PARSE, and names them in errors about others."
  (call-with-schemes-of-ones-own
   (lambda ()
     (register-scheme "local" :parse (fn (_text path _smallest-port)
                                       (parse-target (format nil "127.0.0.1:~A" path))))
     (is (string= "127.0.0.1:81" (target-text (parse-target "local:81"))))
     (signals misuse (parse-target "local://somewhere/81"))
     (register-scheme "pigeon" :open #'list)
     (flet ((complaint (text)
              (handler-case (progn (parse-target text) "")
                (misuse (error) (princ-to-string error)))))
       (is (search "pigeon: is the scheme of channels" (complaint "pigeon:post")))
       (is (search "dns, passthrough, ipv4, ipv6, unix, unix-abstract" (complaint "goose://post")))
       (is (search "local, pigeon" (complaint "goose://post")))))))
