;;;; Asking for addresses and names, for users.

(in-package #:clgrpc.async)

(defstruct (query (:include handle) (:copier nil))
  "A look-up under way.")

(defun begin-query (loop)
  (let ((query (make-query :loop loop)))
    (on-loop (loop)
      (begin-use query)
      (incf (program-lookups (loop-program loop))))
    query))

(defun end-query (query what failure event-cb function)
  "End QUERY, which has been answered, and call FUNCTION. If FAILURE, a text, is given, call
EVENT-CB instead, with the error that WHAT could not be looked up. On the loop."
  (end-use query)
  (decf (program-lookups (loop-program (handle-loop query))))
  (if failure
      (let ((condition (make-condition 'dns-error :address what :reason failure)))
        (if event-cb
            (with-callback (query nil) (funcall event-cb condition))
            (log-event :info :look-up-failed :condition condition)))
      (with-callback (query event-cb) (funcall function))))

(defun dns-lookup (host function &key event-cb (family +af-inet+) (loop *event-loop*))
  "Look up HOST, a name or a numeric address, without blocking the loop. Then call (FUNCTION address
family) on LOOP with the first address of HOST, as text, that is of FAMILY: +AF-INET+ (the default),
+AF-INET6+, or +AF-UNSPEC+ for either. If the name has no such address, EVENT-CB gets a DNS-ERROR.
At most four look-ups run at once; others wait. Return true if HOST is numeric or localhost, because
no resolver is asked about these. FUNCTION is never called before this function returns. Signal
MISUSE if FAMILY is none of the three. From any thread."
  (unless (member family (list +af-inet+ +af-inet6+ +af-unspec+))
    (misuse "~S is not an address family; use +AF-INET+, +AF-INET6+ or +AF-UNSPEC+." family))
  (let* ((loop (the-loop loop))
         (known (os:resolve-host host 0 :lookup nil)) ; first, since a query must be answered
         (query (begin-query loop)))
    (flet ((answer (addresses failure)
             (let* ((address (find-if (lambda (address)
                                        (or (= family +af-unspec+)
                                            (= family (os:address-family address))))
                                      addresses))
                    (failure (cond (address nil)
                                   (failure)
                                   (t "the name has no address of that family"))))
               (end-query query host failure event-cb
                          (lambda ()
                            (funcall function (os:address-host address)
                                     (os:address-family address)))))))
      (if known
          (post loop (lambda () (answer known nil)))
          (loop:lookup-host loop host 0 #'answer))
      (and known t))))

(defun reverse-dns-lookup (address function &key event-cb (loop *event-loop*))
  "Look up the name of the host that has ADDRESS, a numeric address, without blocking the loop. Then
call (FUNCTION host service) on LOOP; HOST is that name. SERVICE is a text without meaning, because
an address has no port. If the address has no name, EVENT-CB gets a DNS-ERROR. Signal MISUSE if
ADDRESS is not numeric. From any thread."
  (let* ((loop (the-loop loop))
         (octets (or (os:make-address address 0)
                     (misuse "~S is not a numeric address." address)))
         (query (begin-query loop)))
    (flet ((lookup ()
             (multiple-value-bind (host service failure)
                 (handler-case (os:lookup-name octets)
                   ;; such as a name that is not UTF-8
                   (error (error) (values nil nil (princ-to-string error))))
               (post loop (lambda ()
                            (end-query query address failure event-cb
                                       (lambda () (funcall function host service))))))))
      (unless (loop:run-on-resolver loop #'lookup)
        (post loop (lambda ()
                     (end-query query address "too many look-ups are waiting" event-cb nil))))
      nil)))
