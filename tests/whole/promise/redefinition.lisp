;;;; P5: what is redefined takes effect at the next call, and calls under way do not notice:
;;;; handlers, messages and services, a hundred times each beside 5,000 calls a second.

(in-package #:clgrpc.tests.promise)
(in-suite :clgrpc.promise.image)

(defun define-shop (&key (fields "") (methods ""))
  "Define the message shop.Item, and its service, anew, with more FIELDS and METHODS."
  (evaluate `(clgrpc:define-proto "shop.proto"
               :source ,(format nil "syntax = \"proto3\"; package shop;
                                     message Item { int64 number = 1; ~A }
                                     service Shop { rpc Sell(Item) returns (Item); ~A }"
                                fields methods))))

(defun define-seller (number)
  "Have the shop answer NUMBER."
  (evaluate `(defmethod ,(find-symbol "SELL" '#:shop.shop) ((service keeper) item &key)
               (declare (ignore item))
               (,(find-symbol "MAKE-ITEM" '#:shop) :number ,number))))

(defun sell (channel &rest arguments)
  "Call the shop with an item made from ARGUMENTS."
  (uiop:symbol-call '#:shop.shop '#:sell channel
                    (apply #'uiop:symbol-call '#:shop '#:make-item arguments) :timeout 20))

(defun item-number (item) (uiop:symbol-call '#:shop '#:item-number item))

(defun begin-sale (channel)
  "Begin a call as the stub does. A stub itself is the generic function that is being redefined, and
waits for the compiler."
  (let ((method (method:stub-method (find-symbol "SELL" '#:shop.shop))))
    (grpc:call-async (lambda (channel request &rest options)
                       (apply #'method:invoke channel method request options))
                     channel (uiop:symbol-call '#:shop '#:make-item) :timeout 20)))

(defun call-under-load (channel function)
  "Call FUNCTION while 5,000 calls a second are made, or fewer where a thousand of them wait since
the machine is too slow; return how many of those failed, and how many there were."
  (let ((stop nil) (failed (list 0)) (made 0) (answered (list 0)))
    (declare (type fixnum made))
    (let ((load (in-thread (loop with begin = (monotonic-ns)
                                 until stop
                                 do (loop while (< made (min (floor (- (monotonic-ns) begin) 200000)
                                                             (+ 1000 (the fixnum (car answered)))))
                                          do (incf made)
                                             (grpc:attach (begin-sale channel)
                                                          (fn (_reply error)
                                                            (sb-ext:atomic-incf (car answered))
                                                            (when error
                                                              (sb-ext:atomic-incf (car failed))))))
                                    (sleep 0.001)))))
      (unwind-protect (funcall function)
        (setf stop t)
        (sb-thread:join-thread load))
      (values (car failed) made))))

(defmacro with-shop ((channel server) &body body)
  `(progn
     (define-shop)
     (evaluate (list 'defclass 'keeper (list (find-symbol "SHOP" '#:shop)) '()))
     (define-seller 0)
     (let ((,server (grpc:start-server (make-instance 'keeper))))
       (declare (ignorable ,server))
       (unwind-protect (grpc:with-channel (,channel (grpc:server-address ,server)) ,@body)
         (grpc:stop-server ,server)))))

(test p5-redefinition-under-load
  (with-shop (channel server)
    (flet ((redefine (what function)
             (let ((slowest 0))
               (multiple-value-bind (failed made)
                   (call-under-load channel
                                    (lambda ()
                                      (dotimes (i 100)
                                        (let ((seconds (elapsed-seconds (funcall function i))))
                                          (setf slowest (max slowest seconds))))))
                 (report "P5: 100 times ~A anew beside ~:D calls: ~D failed; ~,1F ms at most each"
                         what made failed (* 1000 slowest))
                 (is (zerop failed))
                 (is (= 1 (getf (grpc:server-statistics server) :connections)))))))
      (redefine "a handler"
                (lambda (i)
                  (define-seller (1+ i))
                  (unless (= (1+ i) (item-number (sell channel)))
                    (error "~D is not seen." i))))
      (redefine "a message"
                (lambda (i &aux (old (uiop:symbol-call '#:shop '#:make-item)))
                  (define-shop :fields (format nil "string s~D = ~D;" i (+ 2 i)))
                  (unless (= 100 (item-number (uiop:symbol-call '#:shop.shop '#:sell channel old
                                                                :timeout 20)))
                    (error "An item from before ~D is not sold." i))
                  (unless (= 100 (item-number
                                  (sell channel (intern (format nil "S~D" i) :keyword) "new")))
                    (error "The item ~D is not sold." i))))
      (redefine "a service"
                (lambda (i)
                  (let ((name (format nil "SELL~D" i)))
                    (define-shop :methods (format nil "rpc Sell~D(Item) returns (Item);" i))
                    (evaluate `(defmethod ,(find-symbol name '#:shop.shop)
                                   ((service keeper) item &key)
                                 item))
                    (let* ((item (uiop:symbol-call '#:shop '#:make-item :number i))
                           (answer (uiop:symbol-call '#:shop.shop name channel item
                                                     :timeout 20)))
                      (unless (= i (item-number answer))
                        (error "The method ~D is not served." i)))))))))

(test methods-come-and-go
  "A method that a service loses is unknown from then on; one that it gets is served."
  (with-shop (channel server)
    (define-shop :methods "rpc Lend(Item) returns (Item);")
    (flet ((lend () (caught (uiop:symbol-call '#:shop.shop '#:lend channel
                                              (uiop:symbol-call '#:shop '#:make-item)
                                              :timeout 20))))
      (is (typep (lend) 'grpc:unimplemented) "no handler")
      (evaluate `(defmethod ,(find-symbol "LEND" '#:shop.shop) ((service keeper) item &key) item))
      (is (null (lend)))
      (define-shop)
      (is (typep (lend) 'grpc:unimplemented) "no method"))))
