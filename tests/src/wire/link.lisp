;;;; Links: their beginning and their end, and the part of a read that they take in one turn.

(in-package #:clgrpc.tests.wire)

(test links-begin
  (with-link (link :shaken nil)
    (is (equal '(:settings) (remove :window-update (mapcar #'first (memory:said)))))
    (is (string= "memory" (wire::link-peer link)))
    (is (search "memory, 0 calls" (princ-to-string link)))
    (is (null (told)))))

(test links-end-in-order
  "GOAWAY is sent, and the owner gets the reason; a second end has no effect."
  (with-link (link)
    (let ((call (calls 1)))
      (on-loop (lambda () (wire:close-link link "enough")))
      (is (equal '((:goaway 1 :no-error)) (memory:said)))
      (is (eq :cancelled (rpc:call-status call)))
      (is (equal '((:ended "enough")) (told)))
      (on-loop (lambda () (wire:close-link link "again")))
      (memory:silent)
      (memory:hangs-up)
      (is (null (told)))
      (is-true (memory:end-closed memory:*end*)))))

(test links-are-abandoned-with-their-calls
  (with-link (link)
    (let ((call (calls 1)))
      (on-loop (lambda () (wire:close-link link "over" :status :unavailable)))
      (is (eq :unavailable (rpc:call-status call)))
      (memory:says '(:rst-stream 1 :cancel) '(:goaway 1 :no-error)))))

(test links-are-expelled
  "They end at once, without waiting for unsent output."
  (with-link (link)
    (let ((call (calls 1)))
      (on-loop (lambda () (wire:close-link link "others need the place" :how :expel)))
      (is (eq :unavailable (rpc:call-status call)))
      (is (equal '(:goaway 1 :enhance-your-calm) (first (last (memory:said)))))
      (is-true (memory:end-closed memory:*end*))
      (is (equal '((:ended "others need the place")) (told))))))

(test links-that-the-peer-ends
  (with-link (link)
    (let ((call (calls 1)))
      (memory:hangs-up)
      (is (eq :cancelled (rpc:call-status call)))
      (is (equal '((:ended "connection closed by the peer")) (told))))))

(test a-turn-takes-so-many-calls
  "However many a read has, the rest begin in later turns, and none is lost."
  (with-link (link :options '(:max-concurrent-streams 1000))
    (apply #'calls (loop for id from 1 below 1000 by 2 collect id))
    (is (= 500 (length (station-calls *station*))))
    (is (= 500 (wire::link-calls link)))
    (is (< 3 (loop:event-loop-turns (station-loop *station*))))))
