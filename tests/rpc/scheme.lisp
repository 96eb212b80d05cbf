;;;; The registry of schemes.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(test schemes-are-found-by-what-stands-before-the-colon
  (let ((schemes rpc::**schemes**) (others loop:*other-schemes*))
    (unwind-protect
         (let ((pigeon (rpc:register-scheme "pigeon" :open #'list :listen #'list)))
           (is (eq pigeon (rpc:find-scheme "pigeon:post")))
           (is (eq pigeon (rpc:find-scheme "PIGEON:")))
           (dolist (address '("pigeons:post" "pigeo:post" "pigeon" "a pigeon:post" "127.0.0.1:1" nil
                               1))
             (is (null (rpc:find-scheme address))))
           (let ((next (rpc:register-scheme "pigeon" :open #'vector :listen #'list)))
             (is (eq next (rpc:find-scheme "pigeon:post")))
             (is (= 1 (count "pigeon" rpc::**schemes** :key #'rpc::scheme-name :test #'string=))))
           (signals clgrpc.base:misuse (loop:parse-target "goose://post")))
      (setf rpc::**schemes** schemes
            loop:*other-schemes* others))))
