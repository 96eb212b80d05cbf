;;;; The reasons for the end of calls, and the rules for them.

(in-package #:clgrpc.tests.rpc)

(test verdicts-have-a-status-and-a-text
  (is (equal '(:deadline-exceeded "the deadline passed")
             (multiple-value-list (rpc:verdict :deadline-passed))))
  (is (equal '(:resource-exhausted
               "message of 5 octets received, limit 4 (max-receive-octets or service config)")
             (multiple-value-list (rpc:verdict :too-long-received 5 4))))
  (signals misuse (rpc:verdict :unheard-of))
  (loop for row across rpc::**verdicts**
        do (finishes (status:status-code (rpc::verdict-row-status row))))
  (is (= (length rpc::**verdicts**)
         (length (remove-duplicates rpc::**verdicts** :key #'rpc::verdict-row-name))
         (length (remove-duplicates rpc::**verdicts** :key #'rpc::verdict-row-text
                                                      :test #'string=)))))

(defun sources-but (name)
  "The texts of the files that may end calls, except the one called NAME."
  (loop for folder in '("rpc" "attempt" "calling" "wire" "client" "server" "inproc")
        append (loop for path in (support:system-sources (format nil "clgrpc/~A" folder))
                     unless (string= name (pathname-name path))
                       collect (uiop:read-file-string path :external-format :utf-8))))

(test verdicts-are-written-once
  "Their texts occur nowhere else, and each is in use."
  (let ((sources (sources-but "verdict")))
    (flet ((found-p (text)
             (some (lambda (source) (search text source)) sources)))
      (loop for row across rpc::**verdicts**
            for name = (rpc::verdict-row-name row)
            do (is (not (found-p (format nil "~S" (rpc::verdict-row-text row))))
                   "The text of ~S is written again." name)
               (is-true (or (found-p (format nil "~(~S~)" name))
                            ;; what VIOLATION finds
                            (member name '(:no-request :second-request :unfinished-request
                                           :no-response :second-response :unfinished-response)))
                        "Nobody uses ~S." name)))))

(test a-verdict-ends-a-call
  (let* ((ends '())
         (call (new-call :abort (fn (_call &rest how) (push how ends)))))
    (rpc:abort-as call :too-long-received 5 4)
    (is (equal '((:resource-exhausted
                  "message of 5 octets received, limit 4 (max-receive-octets or service config)"
                  :local))
               ends))
    (let ((error (rpc:verdict-error :no-room '(9) :call call)))
      (is (typep error 'status:resource-exhausted))
      (is (eq call (status:rpc-error-call error)))
      (is (eq :local (status:rpc-error-ended-by error)))
      (is (search "9 octets" (status:rpc-error-message error))))))

(test deadlines-pass
  (let ((call (new-call :now (constantly 100))))
    (is (not (rpc:overdue-p call)))
    (loop for (deadline overdue) in '((101 nil) (100 t) (99 t))
          do (setf (rpc:call-deadline call) deadline)
             (is (eq overdue (rpc:overdue-p call))))))

(defun call-of (method client-p)
  (let ((call (new-call :client-p client-p)))
    (setf (rpc:call-rpc-method call) (method:stub-method method))
    call))

(test what-is-wrong-with-messages
  "By method: verdicts on no request, one and two of a handler, and on responses of a client."
  (loop for (method requests responses)
          in '((words.speaker:echo (:no-request nil :second-request)
                (:no-response nil :second-response))
               (words.speaker:spell (:no-request nil :second-request) (nil nil nil))
               (words.speaker:join (nil nil nil) (:no-response nil :second-response))
               (words.speaker:talk (nil nil nil) (nil nil nil)))
        do (loop for count from 0 to 2
                 for request in requests
                 for response in responses
                 do (is (eq request (rpc:violation (call-of method nil) count nil)))
                    (is (eq response (rpc:violation (call-of method t) count nil)))
                    (is (eq :unfinished-request (rpc:violation (call-of method nil) count t)))
                    (is (eq :unfinished-response (rpc:violation (call-of method t) count t)))))
  (is-true (rpc:answers-once-p (call-of 'words.speaker:join nil)))
  (is (not (rpc:takes-one-p (call-of 'words.speaker:join nil)))))

(test trailers-are-added
  (let ((call (new-call)))
    (rpc:add-trailers call '())
    (is (null (rpc::call-ending call)))
    (setf (rpc:call-trailers call) '(("a" . "1")))
    (rpc:add-trailers call '(("b" . "2")))
    (is (equal '(("a" . "1") ("b" . "2")) (rpc:call-trailers call)))))
