;;;; Details of a status, as handlers send and callers read them, and repeated calls.

(in-package #:clgrpc.tests.client)

(defun bad-request (field)
  (google.rpc:make-bad-request
   :field-violations (list (google.rpc:make-bad-request.field-violation
                            :field field :description "is not a number"))))

(defun violated-field (error)
  (let ((detail (grpc:rpc-error-detail error 'google.rpc:bad-request)))
    (google.rpc:bad-request.field-violation-field
     (aref (google.rpc:bad-request-field-violations detail) 0))))

(test details-are-messages
  (with-probe (channel)
      (:ask (lambda (note call)
              (case (number-of note)
                (0 (grpc:fail :invalid-argument "bad" :details (list (bad-request "age") (note 7))
                                                      :trailers '(("x-more" . "yes"))))
                (1 (error (grpc:make-rpc-error :aborted :message "no" :details (list (note 8)))))
                (2 (grpc:finish call :status :not-found :details (list (note 9)))
                   call))))
    (let ((error (caught (ask channel (note 0)))))
      (is (typep error 'grpc:invalid-argument))
      (is (string= "age" (violated-field error)))
      (is (= 7 (number-of (second (grpc:rpc-error-details error)))))
      (is (null (grpc:rpc-error-detail error 'google.rpc:help)))
      (is (equal '(("x-more" . "yes")) (grpc:rpc-error-trailers error)))
      (let ((status (grpc:parse-message 'google.rpc:status (grpc:rpc-error-details-octets error))))
        (is (= 3 (google.rpc:status-code status)))
        (is (string= "bad" (google.rpc:status-message status)))))
    (is (= 8 (number-of (grpc:rpc-error-detail (caught (ask channel (note 1))) 'lab:note))))
    (is (= 9 (number-of (grpc:rpc-error-detail (caught (ask channel (note 2))) 'lab:note))))))

(test details-share-what-one-message-may-take
  "Two octets make a message of a hundred: a thousand details have one limit together."
  (let* ((crowd (make-array 10000 :element-type 'octet
                                  :initial-contents (loop repeat 5000 collect 18 collect 0)))
         (any (google.protobuf:make-any :type-url "a/google.protobuf.DescriptorProto"
                                        :value crowd)))
    (flet ((details (count)
             (grpc:rpc-error-details
              (grpc:make-rpc-error :internal :message ""
                                   :details (grpc:serialize
                                             (google.rpc:make-status
                                              :details (loop repeat count collect any)))))))
      (is (typep (first (details 1)) 'google.protobuf:descriptor-proto))
      (let ((before (sb-ext:get-bytes-consed)) (details (details 200)))
        (is (= 200 (length details)))
        (is (every (lambda (detail) (typep detail 'google.protobuf:any)) details))
        (is (< (- (sb-ext:get-bytes-consed) before) 120000000))))))

(test details-of-others
  "Types that are not loaded, octets that are no message, a status that a handler passes on."
  (let ((unknown (google.protobuf:make-any :type-url "type.googleapis.com/no.Such"
                                           :value (octets-of 8 1)))
        (broken (google.protobuf:make-any :type-url "type.googleapis.com/lab.Note"
                                          :value (octets-of 255))))
    (with-probe (back)
        (:ask (handling ()
                (grpc:fail :aborted "no" :details (list unknown broken))))
      (with-probe (channel)
          (:ask (handling (note)
                  (handler-case (ask back note)
                    (grpc:rpc-error (error)
                      (grpc:fail (grpc:rpc-error-status error) (grpc:rpc-error-message error)
                                 :details (grpc:rpc-error-details error))))))
        (let ((details (grpc:rpc-error-details (caught (ask channel (note 1))))))
          (is (= 2 (length details)))
          (is (every (lambda (any) (typep any 'google.protobuf:any)) details)))))))

(test wrong-details-are-misuse
  (with-probe (channel :events (:handler-error))
      (:ask (fn (_note call)
              (handler-case (grpc:finish call :details (list 1))
                (grpc:misuse () (grpc:fail :internal "misuse")))))
    (is (string= "misuse" (grpc:rpc-error-message (caught (ask channel (note 1))))))))

(test calls-can-be-made-again
  (let ((count 0))
    (with-probe (channel)
        (:ask (handling (note)
                (if (< (incf count) 3) (grpc:fail :unavailable "not yet") note))
         :collect (handling (stream)
                    (let ((sum (reduce #'+ (numbers stream))))
                      (if (< (incf count) 3) (grpc:fail :unavailable "not yet") (note sum)))))
      (flet ((again (function)
               (setf count 0)
               (handler-bind ((grpc:unavailable (fn (_error) (grpc:retry-call))))
                 (funcall function))))
        (multiple-value-bind (reply call) (again (lambda () (ask channel (note 5))))
          (is (= 5 (number-of reply)))
          (is (eq :ok (grpc:call-status call))))
        (is (= 3 count))
        (is (= 6 (number-of (again (lambda () (collect channel (list (note 1) (note 5))))))))
        (signals control-error
          (again (lambda ()
                   (let ((sent nil))
                     (collect channel (lambda ()
                                        (unless (shiftf sent t) (note 1))))))))))))
