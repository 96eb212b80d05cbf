;;;; The calls of handlers, and the reports about answers that cannot be sent.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.serving)

(test handlers-are-called-within-interceptors
  (let ((word (words:make-word :text "a")) (seen '()))
    (flet ((answer (&rest interceptors)
             (serving:answer-of (route-named (routes-of :interceptors interceptors)
                                         "/words.Speaker/Echo")
                            word (call-of 'words.speaker:echo nil))))
      (is (eq word (answer)))
      (is (eq :other (answer (fn (_call request next)
                               (push (funcall next request) seen)
                               :other))))
      (is (equal (list word) seen)))))

(test what-ends-a-call-can-be-sent
  (let ((call (call-of 'words.speaker:echo nil)))
    (flet ((end (&rest arguments)
             (multiple-value-list
              (serving:sendable-end call (apply #'status:make-rpc-error arguments)))))
      (is (equal '(:not-found "none" nil (("a" . "b")))
                 (end :not-found :message "none" :trailers '(("a" . "b")))))
      (is (equal '(:aborted "" nil nil) (end :aborted :message nil)))
      (is (equal '(:aborted "5" nil nil) (end :aborted :message 5)))
      (let ((*log-function* (constantly nil)))
        (is (equal '(:aborted "" nil ()) (end :aborted :trailers '((5 . 6)))))))))

(test answers-that-are-none
  (let ((call (call-of 'words.speaker:echo nil)) (logged '()))
    (flet ((bad (answer)
             (let ((*log-function* (fn (_level _event &rest plist)
                                     (push (princ-to-string (getf plist :condition)) logged))))
               (serving:bad-answer-condition call answer
                                         (make-condition 'simple-error
                                                         :format-control "no message")))))
      (is (eq :internal (status:rpc-error-status (bad 5))))
      (is (search "has returned 5, which cannot be sent: it should return a WORDS:WORD"
                  (first logged)))
      (is (eq :internal (status:rpc-error-status (bad nil))))
      (is (search "should return a WORDS:WORD" (first logged))))))
