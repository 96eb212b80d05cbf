;;;; Waiting octets are charged, and never exceed the options.

(in-package #:clgrpc.tests.wire)

(test what-waits-is-charged-until-it-is-taken
  (with-link (link)
    (let ((call (calls 1)))
      (flet ((charged ()
               (is (<= (abs (- (account-sum (wire::link-account link))
                               (account-sum (station-account *station*))))
                       clgrpc.base::+account-step+))
               (wire::link-held link)))
        (is (zerop (charged)))
        (brings 1 (letter-octets 100 100))
        (is (<= 200 (charged) 1000))
        (received call)
        (memory:run-turns memory:*world*)
        (is (zerop (charged)))
        ;; a half message is charged with its memory, and the end of its call frees it
        (brings 1 (subseq (letter-octets 50000) 0 10000))
        (is (<= 9000 (charged) 80000))
        (memory:hears '(:rst-stream 1 :cancel))
        (is (zerop (charged)))))))

(test links-hold-no-more-than-they-may
  "The call whose octets exceed the limit ends; the others continue."
  (with-link (link :options '(:max-held-octets 65536 :max-receive-octets 30000))
    (let ((first (calls 1)) (second nil))
      (brings 1 (subseq (letter-octets 29000) 0 15000))
      (brings 1 (subseq (letter-octets 29000) 15000))
      (setf second (calls 3))
      (brings 3 (subseq (letter-octets 29000) 0 15000))
      (brings 3 (subseq (letter-octets 29000) 15000))
      (is (null (rpc:call-status first)))
      (let ((third (calls 5)))
        (brings 5 (subseq (letter-octets 29000) 0 15000))
        (is (eq :resource-exhausted (rpc:call-status third)))
        (is (search "max-held-octets" (status:rpc-error-message (rpc:call-condition third)))))
      (is (null (rpc:call-status second)))
      (is (equal '(29000) (received first)))
      (is (equal '(29000) (received second)))
      (memory:run-turns memory:*world*)
      (is (zerop (wire::link-held link))))))

(test all-links-hold-no-more-than-they-may
  (with-link (link :options '(:max-total-held-octets 65536 :max-receive-octets 60000))
    (let ((first (calls 1)))
      (brings 1 (subseq (letter-octets 59000) 0 16000))
      (brings 1 (subseq (letter-octets 59000) 16000 32000))
      (is (null (rpc:call-status first)))
      (let ((second (calls 3)))
        (brings 3 (subseq (letter-octets 59000) 0 16000))
        (is (eq :resource-exhausted (rpc:call-status second)))
        (is (search "max-total-held-octets"
                    (status:rpc-error-message (rpc:call-condition second))))))))

(test a-call-that-ends-gives-the-connections-window-back
  "A link that holds much withholds the connection's window, even for octets of other calls. The end
of the call that holds most returns it, for an unread message as for half of one."
  (flet ((returned (&rest letters)
           (with-link (link :options '(:max-held-octets 65536 :max-receive-octets 30000
                                       :stream-window-octets 65535
                                       :connection-window-octets 65535))
             (calls 1 3)
             (dolist (octets letters) (brings 1 octets))
             (memory:said)
             (brings 3 (letter-octets 9000))
             (is (null (windows (memory:said))))
             (memory:hears '(:rst-stream 1 :cancel))
             (windows (memory:said)))))
    (let ((half (subseq (letter-octets 29990) 0 29000)))
      (is (equal '(0) (mapcar #'first (returned (subseq half 0 15000) (subseq half 15000))))))
    (is (equal '(0) (mapcar #'first (returned (letter-octets 9000) (letter-octets 9000)
                                              (letter-octets 9000)))))))
